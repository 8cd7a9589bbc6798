#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the losses of [preference] with the trainers of TRL: same model, answers, order, rates, fp32.

    pip install torch==2.11.0 transformers datasets accelerate trl==1.16.0 safetensors numpy
    tools/oracle/preference_oracle.py STEPFORGE

First the token ids and the answers of `stepforge data show` must be those of TRL. Then both train twenty AdamW steps of ten pairs,
or of ten judged answers, and these must agree in each step:
  - log-probabilities and gradient norms to 1e-5 relative, where values below a tenth of the largest of the run count as a tenth;
  - the loss, the divergence of kto, the rewards and their margins to 1e-5 of the largest of the run: losses may end at 0, rewards begin there;
    rewards, which are differences of log-probabilities, at least to what beta makes of the rounding that these are granted;
  - the shares of pairs with the right order exactly.
Of reward models the scores are the rewards, and the export is opened by transformers and gives an answer the same score.
The final weights must agree to 1e-4 of the tensor's largest element (train_oracle.py says why). Then one step of plain SGD on all pairs:
the weights change by the gradient, which must agree with autograd of TRL's loss to 1e-5 of the tensor's largest element. Exit code 1
with the differences.
"""
import copy
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path

os.environ.update({"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1", "TOKENIZERS_PARALLELISM": "false"})
warnings.filterwarnings("ignore")

import datasets
import torch
from model_oracle import llama, randomize, save_model
from safetensors.torch import load_file, save_file
from train_oracle import run, stepforge_steps
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer, PreTrainedTokenizerFast, PrinterCallback
from transformers.utils import logging
from trl import DPOConfig, DPOTrainer, KTOConfig, KTOTrainer, RewardConfig, RewardTrainer
from trl.experimental.cpo import CPOConfig, CPOTrainer
from trl.experimental.orpo import ORPOConfig, ORPOTrainer

PAIRS, STEPS, STEP_PAIRS, LENGTH = 50, 20, 10, 256
LR, BETAS, EPS = 1e-4, (0.9, 0.999), 1e-8
# The difference of the weights is divided by it. A rate of 1 would leave the rounding of the weights in gradients that are smaller.
SGD_LR = 512.0
TOLERANCE, WEIGHT_TOLERANCE, GRADIENT_TOLERANCE = 1e-5, 1e-4, 1e-5
TOKENIZER = Path(__file__).parents[2] / "tests/golden/text/llama3_like/tokenizer.json"
WORDS = ("the of and to in is that for it was on are as with his they at be this from have or by one had not but what all were when we there "
         "can an your which their said if do naïve Größe 日本 7 42 1999 can't we're (see) x=y").split()  # fmt: skip


class AnswerORPOTrainer(ORPOTrainer):
    """TRL's cross-entropy of ORPO covers the prompt too, Stepforge's the better answer only, as CPO's in both: so it is computed here from
    TRL's logits. The ratio is TRL's (odds_ratio_loss)."""

    def concatenated_forward(self, model, batch):
        *values, chosen_logits, rejected_logits, _ = super().concatenated_forward(model, batch)
        labels = batch["chosen_labels"][:, 1:]
        logits = chosen_logits[:, : labels.shape[1]]
        nll = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
        return *values, chosen_logits, rejected_logits, nll


class WholeKTOTrainer(KTOTrainer):
    """TRL gives each prompt the answer of the record before it in its batch, and the first one that of the last; Stepforge does so with
    the whole data set, so that the reference sees each mismatched answer once. Here TRL does it too."""

    def _prepare_dataset(self, dataset, processing_class, args, dataset_name):
        args = copy.copy(args)
        args.per_device_train_batch_size = len(dataset)
        return super()._prepare_dataset(dataset, processing_class, args, dataset_name)


TRAINERS = {"dpo": (DPOTrainer, DPOConfig), "cpo": (CPOTrainer, CPOConfig), "orpo": (AnswerORPOTrainer, ORPOConfig),
            "reward": (RewardTrainer, RewardConfig), "kto": (WholeKTOTrainer, KTOConfig)}  # fmt: skip


@dataclass
class Case:
    trainer: str
    theirs: dict  # settings of TRL
    ours: dict  # of [preference]
    one_by_one: bool = False  # TRL gets one pair at a time
    reference: str = "model"  # the folder of the model that is compared with

    @property
    def judged(self):
        """It learns from single answers with a label."""
        return self.trainer == "kto"

    @property
    def answers(self):
        return ("completion",) if self.judged else ("chosen", "rejected")

    def model(self, folder):
        return folder / ("classifier" if self.trainer == "reward" else "model")


CASES = {
    "dpo": Case("dpo", {"loss_type": "sigmoid"}, {"loss": "dpo"}),
    "dpo, another reference": Case("dpo", {"loss_type": "sigmoid", "beta": 0.3}, {"loss": "dpo", "beta": 0.3}, reference="reference"),
    "dpo, beta 0.3": Case("dpo", {"loss_type": "sigmoid", "beta": 0.3}, {"loss": "dpo", "beta": 0.3}),
    # TRL 1.16 smooths no "sigmoid". Its "aot" is the smoothed loss of sorted pairs: for one pair it is the smoothed loss.
    "dpo, smoothed": Case("dpo", {"loss_type": "aot", "label_smoothing": 0.1}, {"loss": "dpo", "label_smoothing": 0.1}, one_by_one=True),
    "hinge": Case("dpo", {"loss_type": "hinge", "beta": 0.3}, {"loss": "hinge", "beta": 0.3}),
    "ipo": Case("dpo", {"loss_type": "ipo", "beta": 0.4}, {"loss": "ipo", "beta": 0.4}),
    "dpo, normalized": Case("dpo", {"loss_type": "sigmoid_norm", "beta": 2.0}, {"loss": "dpo", "length_normalized": True, "beta": 2.0}),
    # In place of rpo_alpha, TRL 1.16 has the loss "sft" with a weight.
    "dpo, sft": Case("dpo", {"loss_type": ["sigmoid", "sft"], "loss_weights": [1.0, 0.7]}, {"loss": "dpo", "sft_weight": 0.7}),
    "cpo": Case("cpo", {"loss_type": "sigmoid", "cpo_alpha": 1.0}, {"loss": "cpo"}),
    "cpo, smoothed": Case("cpo", {"loss_type": "sigmoid", "cpo_alpha": 0.3, "beta": 0.2, "label_smoothing": 0.1},
                          {"loss": "cpo", "sft_weight": 0.3, "beta": 0.2, "label_smoothing": 0.1}),
    "simpo": Case("cpo", {"loss_type": "simpo", "cpo_alpha": 0.0, "simpo_gamma": 0.5, "beta": 2.0}, {"loss": "simpo"}),
    "simpo, smoothed, sft": Case("cpo", {"loss_type": "simpo", "cpo_alpha": 0.4, "simpo_gamma": 1.5, "beta": 2.5, "label_smoothing": 0.2},
                                 {"loss": "simpo", "sft_weight": 0.4, "margin": 1.5, "beta": 2.5, "label_smoothing": 0.2}),
    "orpo": Case("orpo", {}, {"loss": "orpo"}),
    "orpo, beta 0.5": Case("orpo", {"beta": 0.5}, {"loss": "orpo", "beta": 0.5}),
    "reward": Case("reward", {}, {"loss": "reward"}),
    "reward, centered": Case("reward", {"center_rewards_coefficient": 0.05}, {"loss": "reward", "center_weight": 0.05}),
    "kto": Case("kto", {}, {"loss": "kto"}),
    "kto, weights, beta 0.4": Case("kto", {"beta": 0.4, "desirable_weight": 0.7, "undesirable_weight": 1.6},
                                   {"loss": "kto", "beta": 0.4, "desirable_weight": 0.7, "undesirable_weight": 1.6}),
    "kto, another reference": Case("kto", {}, {"loss": "kto"}, reference="reference"),
    "apo_zero_unpaired": Case("kto", {"loss_type": "apo_zero_unpaired", "beta": 0.3}, {"loss": "apo_zero_unpaired", "beta": 0.3}),
    # TRL has a margin for each pair.
    "reward, margin": Case("reward", {}, {"loss": "reward", "margin": 0.5}),
}  # fmt: skip


def make_pairs():
    """Answers begin with a space, so that no token lies across their beginning."""
    generator = random.Random(1)

    def text(most):
        return " ".join(generator.choice(WORDS) for _ in range(generator.randint(1, most)))

    return [{"prompt": text(12) + "?", "chosen": f" {text(18)}.", "rejected": f" {text(18)}!"} for _ in range(PAIRS)]


def judged_of(pairs):
    """One answer of each pair, four of five the better one, so that there is a divergence."""
    return [{"prompt": pair["prompt"], "completion": pair["chosen" if i % 5 < 4 else "rejected"], "label": i % 5 < 4}
            for i, pair in enumerate(pairs)]  # fmt: skip


def write_model(folder, seed=3, width=64):
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(TOKENIZER), bos_token="<|start|>", eos_token="<|endoftext|>")
    model = randomize(llama(4, 2, False, hidden_size=width, intermediate_size=112, num_hidden_layers=2, vocab_size=len(tokenizer)), seed)
    for config in (model.config, model.generation_config):
        config.bos_token_id, config.eos_token_id = tokenizer.bos_token_id, tokenizer.eos_token_id
    save_model(model, folder)
    tokenizer.save_pretrained(folder)


def write_classifier(model, folder):
    """The same model with a score. Padding must not be the token with which answers end: transformers takes the last one that is none."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    classifier = AutoModelForSequenceClassification.from_pretrained(model, num_labels=1, dtype=torch.float32)
    classifier.config.pad_token_id = tokenizer.bos_token_id
    torch.manual_seed(5)
    torch.nn.init.normal_(classifier.score.weight, std=0.2)
    classifier.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def write_inputs(folder):
    write_model(folder / "model")
    write_model(folder / "reference", seed=4, width=96)
    write_classifier(folder / "model", folder / "classifier")
    pairs = make_pairs()
    (folder / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    (folder / "judged.jsonl").write_text("".join(json.dumps(record) + "\n" for record in judged_of(pairs)))
    (folder / "run.toml").write_text(f"""
run_dir = "{folder / 'run'}"
[model]
from = "{folder / 'model'}"
[data]
sources = [{{ path = "{folder / 'pairs.jsonl'}", format = "preference" }}]
packing = "none"
too_long = "error"
shuffle = false
cache_dir = "{folder / 'cache'}"
[training]
seq_len = {LENGTH}
local_batch_size = 5
global_batch_size = {STEP_PAIRS}
steps = {STEPS}
max_norm = 0
device = "cpu"
[optimizer]
lr = {LR}
beta1 = {BETAS[0]}
beta2 = {BETAS[1]}
eps = {EPS}
weight_decay = 0
[lr_scheduler]
warmup_steps = 0
decay_type = "constant"
[metrics]
log_freq = 1
""")
    return pairs


def open_model(case, path):
    kind = AutoModelForSequenceClassification if case.trainer == "reward" else AutoModelForCausalLM
    return kind.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")


def make_trainer(case, folder, pairs, pairs_at_once):
    """A trainer of TRL on the CPU, with a new copy of the model. Its norm limit is never reached, but makes it log the norm."""
    trainer_class, config_class = TRAINERS[case.trainer]
    at_once = 1 if case.one_by_one else pairs_at_once
    settings = config_class(
        output_dir=str(folder / "trl"), use_cpu=True, bf16=False, gradient_checkpointing=False, disable_dropout=True, max_length=LENGTH,
        per_device_train_batch_size=at_once, gradient_accumulation_steps=pairs_at_once // at_once, max_steps=STEPS,
        train_sampling_strategy="sequential", remove_unused_columns=False, optim="adamw_torch", learning_rate=LR,
        lr_scheduler_type="constant", warmup_steps=0, adam_beta1=BETAS[0], adam_beta2=BETAS[1], adam_epsilon=EPS, weight_decay=0.0,
        max_grad_norm=1e9, logging_steps=1,
        report_to="none", save_strategy="no", disable_tqdm=True, **case.theirs,
    )  # fmt: skip
    reference = {"ref_model": open_model(case, folder / case.reference)} if case.trainer in ("dpo", "kto") else {}
    tokenizer = AutoTokenizer.from_pretrained(case.model(folder))
    tokenizer.pad_token = tokenizer.bos_token if case.trainer == "reward" else tokenizer.eos_token
    if case.trainer == "reward" and "margin" in case.ours:
        pairs = [{**pair, "margin": case.ours["margin"]} for pair in pairs]
    if case.judged:
        pairs = judged_of(pairs)
    trainer = trainer_class(model=open_model(case, case.model(folder)), args=settings, train_dataset=datasets.Dataset.from_list(pairs),
                            processing_class=tokenizer, **reference)  # fmt: skip
    trainer.remove_callback(PrinterCallback)
    trainer.model.get_input_embeddings().padding_idx = None  # else PyTorch drops the gradient of that token, which begins each text
    return trainer


def trl_answers(case, trainer):
    """Of each answer, in order: all token ids, and the number of those that count; None for scores, of which the last one does."""
    answers = []
    for row in trainer.train_dataset:
        for name in case.answers:
            if "prompt_ids" in row:
                answers.append((row["prompt_ids"] + row[f"{name}_ids"], len(row[f"{name}_ids"])))
            elif f"{name}_ids" in row:
                answers.append((row[f"{name}_ids"], None))
            else:
                labels = row[f"{name}_labels"]
                counted = sum(label != -100 for label in labels)
                if labels[len(labels) - counted :] != row[f"{name}_input_ids"][len(labels) - counted :]:
                    sys.exit(f"TRL's labels are not the end of its tokens: {row}")
                answers.append((row[f"{name}_input_ids"], counted))
    return answers


def stepforge_answers(program, folder, case):
    """The same of `stepforge data show`. The label of a token is the next one, so the tokens that count are the last ones. The end of a row
    is filled with tokens of which none counts."""
    command = [program, "data", "show", folder / "run.toml", *fields(case, folder), "--rows", str(PAIRS), "--max-tokens", "0"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    answers = []
    for line in done.stdout.split("\n"):
        found = re.match(r" *\d+ +(\d+) +(\d+)  .* (-100|\d+)  ", line)
        if not found:
            continue
        place, token, label = map(int, found.groups())
        if place == 0:
            answers.append(([], []))
        answers[-1][0].append(token)
        answers[-1][1].append(label)
    answers = [(tokens, labels) for tokens, labels in answers if set(labels) != {-100}]
    for tokens, labels in answers:
        counted = sum(label != -100 for label in labels)
        if labels != [-100] * (len(tokens) - 1 - counted) + tokens[len(tokens) - counted :] + [-100]:
            sys.exit(f"the labels of Stepforge are not its last tokens: {tokens} {labels}")
    return [(tokens, sum(label != -100 for label in labels)) for tokens, labels in answers]


def check_tokens(program, folder, name, case, trainer):
    """Nothing else is worth comparing if these differ."""
    ours, theirs = stepforge_answers(program, folder, case), trl_answers(case, trainer)
    count = len(case.answers)
    if len(ours) != count * PAIRS or len(theirs) != count * PAIRS:
        sys.exit(f"{name}: {len(ours)} answers in Stepforge and {len(theirs)} in TRL, not {count * PAIRS}")
    for number, (mine, other) in enumerate(zip(ours, theirs)):
        if mine[0] != other[0] or other[1] not in (mine[1], None):
            sys.exit(f"{name}: answer {number % count} of record {number // count} has other tokens (ids, number that counts):\n"
                     f"  Stepforge {mine}\n  TRL       {other}")  # fmt: skip


def fields(case, folder):
    """Arguments of the program."""
    data = [f'data.sources=[{{path="{folder / "judged.jsonl"}",format="unpaired_preference"}}]'] if case.judged else []
    other = [f"preference.reference={folder / case.reference}"] if case.reference != "model" else []
    return [f"model.from={case.model(folder)}", *data, *other] + [f"preference.{key}={str(value).lower()}" for key, value in case.ours.items()]


def trl_steps(case, folder, pairs):
    """As TRL trains it; returns what it logged, and the final weights."""
    trainer = make_trainer(case, folder, pairs, STEP_PAIRS)
    trainer.train()
    records = [record for record in trainer.state.log_history if "loss" in record]
    if case.trainer == "reward":  # which names its figures differently
        records = [{**record, "rewards/margins": record["margin"], "rewards/accuracies": record["accuracy"],
                    "rewards/mean": record["mean_reward"]} for record in records]  # fmt: skip
    return records, trainer.model.state_dict()


def trl_gradient(case, folder, pairs):
    """The gradients of TRL's loss of all pairs."""
    trainer = make_trainer(case, folder, pairs, PAIRS)
    model = trainer.model.train()
    batches = list(trainer.get_train_dataloader())
    for batch in batches:
        (trainer.compute_loss(model, batch) / len(batches)).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def stepforge_gradient(program, folder, case):
    """The first step of momentum is the gradient alone."""
    settings = ["optimizer.name=sgd", "optimizer.momentum=0.5", "optimizer.nesterov=false", f"optimizer.lr={SGD_LR}",
                f"training.global_batch_size={PAIRS}", "training.steps=1", f"run_dir={folder / 'sgd'}"]  # fmt: skip
    run([program, "train", folder / "run.toml", *fields(case, folder), *settings])
    run([program, "export", folder / "sgd", folder / "sgd-export"])
    before, after = load_file(case.model(folder) / "model.safetensors"), load_file(folder / "sgd-export/model.safetensors")
    return {name: (before[name].double() - after[name].double()) / SGD_LR for name in before}


def check_classifier(program, folder, tokens):
    """transformers opens what Stepforge exports, finds all of it, and gives an answer the same score."""
    model, info = AutoModelForSequenceClassification.from_pretrained(folder / "export", output_loading_info=True, dtype=torch.float32)
    if info["missing_keys"] or info["unexpected_keys"]:
        sys.exit(f"the export is not the whole classifier: {info}")
    save_file({"tokens": torch.tensor([tokens], dtype=torch.int32)}, folder / "tokens.safetensors")
    run([program, "eval", folder / "export", "--tokens", folder / "tokens.safetensors", "--output", folder / "scores.safetensors"])
    ours = load_file(folder / "scores.safetensors")["score"][0, -1].item()
    with torch.no_grad():
        theirs = model(torch.tensor([tokens])).logits.item()
    if abs(ours - theirs) > TOLERANCE * max(1.0, abs(theirs)):
        sys.exit(f"the exported model scores {ours} in Stepforge and {theirs} in transformers")


def worst_of_tensors(got, expected):
    if got.keys() != expected.keys():
        sys.exit(f"tensors differ: {sorted(got.keys() ^ expected.keys())}")
    return max(((got[key] - expected[key]).abs().max() / expected[key].abs().max()).item() for key in expected)


def worst_of_metrics(steps, records, names, least, scale=0.0):
    """Relative to each value, at least to that share of the largest of the run, and to `scale`."""
    worst = 0.0
    for name in names:
        floor = max(scale, least * max(abs(record[name]) for record in records)) or 1.0
        worst = max(worst, *(abs(step[name] - record[name]) / max(abs(record[name]), floor) for step, record in zip(steps, records, strict=True)))
    return worst


def gaps_of(case, steps, records):
    """The largest difference of each kind."""
    steps = [{**step, "loss": step["loss_metrics/global_avg_loss"],
              "rewards/mean": (step["rewards/chosen"] + step["rewards/rejected"]) / 2} for step in steps]  # fmt: skip
    gaps = {
        "losses": worst_of_metrics(steps, records, ["loss"], 1.0),
        "gradient norms": worst_of_metrics(steps, records, ["grad_norm"], 0.1),
    }
    if "rewards/mean" in records[0]:
        return {**gaps, "rewards": worst_of_metrics(steps, records, ["rewards/mean", "rewards/margins"], 1.0)}
    largest = max(abs(record[name]) for record in records for name in ("logps/chosen", "logps/rejected"))
    scale = 0.1 * largest * case.ours.get("beta", 0.1) if case.judged else 0.0
    return {
        **gaps,
        **({"kl": worst_of_metrics(steps, records, ["kl"], 1.0)} if "kl" in steps[0] else {}),
        "log-probabilities": worst_of_metrics(steps, records, ["logps/chosen", "logps/rejected"], 0.1),
        "rewards": worst_of_metrics(steps, records, ["rewards/chosen", "rewards/rejected", "rewards/margins"], 1.0, scale),
    }


def same_accuracies(steps, records):
    name = "rewards/accuracies"  # not of answers that are judged alone
    return all(abs(step.get(name, 0) - record.get(name, 0)) < 1e-6 for step, record in zip(steps, records, strict=True))


def check(program, name):
    case = CASES[name]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        pairs = write_inputs(folder)
        check_tokens(program, folder, name, case, make_trainer(case, folder, pairs, STEP_PAIRS))
        steps, weights = stepforge_steps(program, folder, ["train", folder / "run.toml", *fields(case, folder)])
        if case.trainer == "reward":
            check_classifier(program, folder, trl_answers(case, make_trainer(case, folder, pairs, STEP_PAIRS))[0][0])
        records, expected = trl_steps(case, folder, pairs)
        if len(steps) != STEPS or len(records) != STEPS:
            sys.exit(f"{name}: {len(steps)} steps in Stepforge and {len(records)} in TRL, not {STEPS}")
        gaps = gaps_of(case, steps, records)
        accuracies = same_accuracies(steps, records)
        weight_gap = worst_of_tensors(weights, expected)
        gradient_gap = worst_of_tensors(stepforge_gradient(program, folder, case), trl_gradient(case, folder, pairs))
        good = accuracies and max(gaps.values()) <= TOLERANCE and weight_gap <= WEIGHT_TOLERANCE and gradient_gap <= GRADIENT_TOLERANCE
        print(f"{'equal ' if good else 'DIFFER'}  {name:20} loss {records[0]['loss']:.3f} to {records[-1]['loss']:.3f}: "
              + ", ".join(f"{key} {gap:.1e}" for key, gap in gaps.items())
              + f", weights {weight_gap:.1e}, gradient {gradient_gap:.1e}{'' if accuracies else ', other accuracies'}", flush=True)  # fmt: skip
        return good


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    datasets.disable_progress_bars()
    program = Path(sys.argv[1]).resolve()
    results = [check(program, name) for name in CASES]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
