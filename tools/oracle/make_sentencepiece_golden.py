#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains small models with Python's `sentencepiece` and writes them with its ids and decoded text.

    pip install sentencepiece
    tools/oracle/make_sentencepiece_golden.py tests/golden/text/sentencepiece
"""
import io
import json
import os
import sys

import sentencepiece
from fuzzed_texts import fuzzed
from tokenizer_kinds import CORPUS

KINDS = {
    "unigram": dict(model_type="unigram", vocab_size=150, normalization_rule_name="identity"),
    "bpe_bytes": dict(model_type="bpe", vocab_size=420, byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False),
}


def main():
    folder = sys.argv[1]
    os.makedirs(folder, exist_ok=True)
    for name, options in KINDS.items():
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(CORPUS), model_writer=model, hard_vocab_limit=False, minloglevel=2, **options)
        with open(os.path.join(folder, name + ".model"), "wb") as file:
            file.write(model.getvalue())
        processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
        texts = ["", " ", "The  quick fox\n", "\u6f22 caf\u00e9 \ufb01 \u00bd <s>"] + [t.replace("\0", "") for t in fuzzed(20, 5)]
        cases = [[text, processor.encode(text), processor.decode(processor.encode(text))] for text in texts]
        roles = {"eos": processor.eos_id(), "bos": processor.bos_id(), "size": processor.get_piece_size()}
        with open(os.path.join(folder, name + ".json"), "w", encoding="ascii") as file:
            file.write(json.dumps(dict(roles, made_by="sentencepiece " + sentencepiece.__version__))[:-1] + ', "cases": [\n')
            file.write(",\n".join(map(json.dumps, cases)) + "\n]}\n")


main()
