#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Renders the chat templates of the model families that TRL ships with 14 conversations and compares `stepforge data build` with
transformers: the token ids, and the mask of learned tokens where a template has {% generation %} blocks.

    pip install transformers tokenizers numpy; pip install --no-deps trl
    tools/oracle/families_oracle.py STEPFORGE

A conversation that both refuse is equal. One that only Stepforge refuses is listed and is no difference: nothing wrong is learned. Contents in
parts are joined for templates that write texts, so transformers renders them both ways. Exit code 1 with the first differences.
"""
import importlib.util
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from indexed_pair import read_pair
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end|>"]


def message(role, content, **more):
    return {"role": role, "content": content, **more}


def calls(*made):
    return [{"type": "function", "function": {"name": name, "arguments": arguments}} for name, arguments in made]


def parts(*texts):
    return [{"type": "text", "text": text} for text in texts]


U, A = (lambda text: message("user", text)), (lambda text, **more: message("assistant", text, **more))
WEATHER, BOTH = calls(("weather", {"city": "Oslo"})), calls(("area", {"w": 3, "unit": None}), ("name", {"of": "a \"b\" <c>"}))
SYSTEM = message("system", "Be brief.")

CONVERSATIONS = {
    "one turn": [U("Hi"), A("Hello.")],
    "system": [SYSTEM, U("Hi"), A("Hello.")],
    "three turns": [U("One"), A("1"), U("Two"), A("2"), U("Three"), A("3")],
    "the same answer twice": [U("Say x"), A("x"), U("x"), A("x")],
    "white space": [U("  Hi \n"), A("\n Hello. \n\n"), U("\tAgain"), A(" Yes")],
    "unicode": [SYSTEM, U("Grüße, 你好 \U0001f600"), A("Привет e\u0301 \u00e9.")],
    "markup": [U("{{ x }} <b>&amp;</b> {% y %}"), A("<|im_end|> is a token, </s> too"), U("Go on"), A("[INST] no")],
    "thoughts in the text": [U("2+2"), A("<think>\nsum\n</think>\n\n4"), U("3+3"), A("<think>\nagain\n</think>\n\n6")],
    "thoughts of their own": [U("2+2"), A("4", reasoning_content="sum", thinking="sum"), U("3+3"), A("6", reasoning_content="again", thinking="again")],
    "a call": [U("Weather?"), A("", tool_calls=WEATHER), message("tool", "3 degrees", name="weather", tool_call_id="1"), A("It is cold.")],
    "a call with text": [SYSTEM, U("Weather?"), A("I look.", tool_calls=WEATHER), message("tool", "3 degrees", name="weather", tool_call_id="1"), A("It is cold.")],
    "two calls and a later question": [U("Area?"), A("", tool_calls=BOTH), message("tool", "9", name="area"), message("tool", "{}", name="name"), A("9"), U("Thanks"), A("Bye")],
    "a thought before a call": [U("Weather?"), A("", reasoning_content="ask", thinking="ask", tool_calls=WEATHER), message("tool", "3", name="weather"), A("Cold.", reasoning_content="so", thinking="so")],
    "parts": [message("user", parts("Hi ", "there")), message("assistant", parts("Hello", "."))],
}


def make_tokenizer():
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")


def joined(messages):
    text = lambda content: content if isinstance(content, str) else "".join(part["text"] for part in content)
    return [{**made, "content": text(made["content"])} for made in messages]


def of_transformers(tokenizer, template, messages):
    """Ids and mask, or None if the template refuses the messages."""
    try:
        made = tokenizer.apply_chat_template(messages, chat_template=template, return_dict=True, return_assistant_tokens_mask="{% generation" in template)
    except Exception:
        return None
    return list(made["input_ids"]), list(made.get("assistant_masks", []))


def of_stepforge(stepforge, folder, template, messages):
    data = folder / "data.jsonl"
    data.write_text(json.dumps({"messages": messages}) + "\n")
    done = subprocess.run([stepforge, "data", "build", "--input", data, "--format", "messages", "--tokenizer", folder, "--chat-template", template,
                           "--output-prefix", folder / "out", "--overwrite", "--workers", "1"], capture_output=True, text=True)
    if done.returncode != 0:
        return None, done.stderr.strip().splitlines()[-1]
    return read_pair(folder / "out_text_document")[0], ""


def shown(ids, mask, tokenizer):
    text, inside = "", False
    for token, counts in zip(ids, mask or [0] * len(ids)):
        text += ("[[" if counts and not inside else "]]" if inside and not counts else "") + tokenizer.decode([token])
        inside = bool(counts)
    return ascii(text)


def main():
    stepforge = sys.argv[1]
    templates = sorted((Path(importlib.util.find_spec("trl").origin).parent / "chat_templates").glob("*.jinja"))
    tokenizer = make_tokenizer()
    count = {"equal": 0, "refused by both": 0, "refused by Stepforge alone": 0, "different": 0}
    masks = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tokenizer.save_pretrained(folder)
        for path in templates:
            template = path.read_text()
            for kind, messages in CONVERSATIONS.items():
                ways = [made for way in (joined(messages), messages) if (made := of_transformers(tokenizer, template, way))]
                ours, refusal = of_stepforge(stepforge, folder, path, messages)
                if ours is None:
                    result = "refused by Stepforge alone" if ways else "refused by both"
                else:
                    with_mask = "{% generation" in template
                    same = any(ours[0] == ids and (not with_mask or ours[1] == mask) for ids, mask in ways)
                    masks += with_mask and same
                    result = "equal" if same else "different"
                count[result] += 1
                if result == "refused by Stepforge alone":
                    print(f"{path.name}, {kind}: {refusal[:300]}")
                elif result == "different":
                    print(f"{path.name}, {kind}: differs\n    stepforge    {shown(*ours, tokenizer)}")
                    print(f"    transformers {shown(*ways[0], tokenizer) if ways else 'refuses'}")
    print(f"{len(templates)} templates, {len(CONVERSATIONS)} conversations: " + ", ".join(f"{number} {result}" for result, number in count.items()))
    print(f"{masks} of the equal ones are compared with their masks")
    sys.exit(1 if count["different"] else 0)


main()
