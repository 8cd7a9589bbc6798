# Every target is a script in scripts/ or tools/; each does the set-up it needs by itself.
.DEFAULT_GOAL := build
SECONDS ?= 60
ROUNDS ?= 3
.PHONY: build demo test test-all lint format docs oracle bench fuzz mutants clean help

build: ## Install what is missing and build build/release/stepforge
	@scripts/build.sh

demo: ## Train a small model on a book, kill it, resume it, export it, let it write; FILE=my.txt for a text of yours
	@scripts/demo.sh $(if $(FILE),"$(FILE)")

test: ## Build, lint and test everything
	@scripts/test.sh

test-all: ## The same with the long tests
	@scripts/test.sh --all

lint: ## Check format, rules of the house, generated documents; clang-tidy
	@tools/lint/lint.sh

format: ## Format all C++ files
	@tools/lint/lint.sh --format

docs: ## Write docs/configuration.md from the program's schema
	@scripts/docs.sh

oracle: ## Compare with PyTorch, transformers and tokenizers (downloads about 5 GB once)
	@tools/oracle/oracle.sh

bench: ## Speed and memory against PyTorch, torch.compile and transformers; ROUNDS=3
	@tools/bench/bench.sh $(ROUNDS)

fuzz: ## Feed the readers of files with random bytes; SECONDS=60 for each
	@scripts/fuzz.sh $(SECONDS)

mutants: ## Plant bugs one at a time; print how many the tests find
	@tools/mutants/mutants.sh

clean: ## Remove the build folder; runs and caches stay
	@rm -rf build

help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' Makefile
