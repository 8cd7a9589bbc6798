# SPDX-License-Identifier: Apache-2.0
# Every target is a script in scripts/ or tools/.
.DEFAULT_GOAL := build
.NOTPARALLEL:
SECONDS ?= 60
ROUNDS ?= 3
.PHONY: setup build cuda gpu-check dist demo test check test-all lint format docs api oracle bench bench-data bench-yardsticks fuzz fuzz-long mutants clean help

setup: ## Install what building and testing need: Debian packages, and libtorch and Arrow in ~/.cache
	@scripts/setup.sh

build: ## Build build/release/stepforge; installs nothing
	@scripts/build.sh

cuda: ## Build the plug-in for GPUs, where nvcc is found; scripts/setup.sh cuda fetches what loading it needs
	@scripts/cuda.sh

dist: ## Pack the program for other machines: build/dist/stepforge-VERSION-linux-x86_64.tar.zst, which uses the PyTorch there
	@scripts/dist.sh

gpu-check: ## Check and measure a GPU with what is built; without a GPU say so and fail; ONLY=kernels,rates
	@scripts/gpu_check.sh $(if $(ONLY),--only $(ONLY))

demo: ## Set up and build; train a small model on a book, kill it, resume it, export it, generate text; FILE=my.txt uses your text
	@scripts/demo.sh $(if $(FILE),"$(FILE)")

test: ## Set up, build and run the tests
	@scripts/test.sh

check: lint test ## Everything a change must pass: lint and test

test-all: ## check with the long tests, the thread sanitizer, and clang-tidy on every file
	@tools/lint/lint.sh --all
	@scripts/test.sh --all

lint: ## Check formatting, the rules of the house and generated documents; run clang-tidy
	@tools/lint/lint.sh

format: ## Format all C++ files
	@tools/lint/lint.sh --format

docs: ## Write docs/configuration.md from the program's schema
	@scripts/docs.sh

api: ## Write the reference of the public headers to build/api with Doxygen
	@scripts/api.sh

oracle: ## Compare results with PyTorch, transformers and tokenizers (downloads about 5 GB once)
	@tools/oracle/oracle.sh

bench: ## Measure speed and memory against PyTorch, torch.compile and transformers; ROUNDS=3, PARTS="models ranks"
	@tools/bench/bench.sh $(ROUNDS) $(PARTS)

bench-yardsticks: ## Measure nanoGPT's recipe for a CPU, and GPT-2 124M against PyTorch and llm.c; ROUNDS=3, LLMC=train_gpt2
	@TEXT="$(TEXT)" LLMC="$(LLMC)" tools/bench/yardsticks.sh $(ROUNDS)

bench-data: ## Measure tokenizing and preparing text against tokenizers, datasets and Megatron; ROUNDS=3
	@tools/bench/data.sh $(ROUNDS)

fuzz: ## Fuzz the file parsers, SECONDS=60 each
	@scripts/fuzz.sh $(SECONDS)

fuzz-long: ## Fuzz them with RUNS=10000000 inputs each
	@scripts/fuzz.sh --runs $(or $(RUNS),10000000)

mutants: ## Plant bugs one at a time and print how many the tests find
	@tools/mutants/mutants.sh

clean: ## Remove the build folder; keep runs and caches
	@rm -rf build

help: ## Print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-16s %s\n", $$1, $$2}' Makefile
