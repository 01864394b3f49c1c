# The targets for people and for CI.

# Bash: make may start a simple command itself, with the PATH from before the line below.
SHELL := /bin/bash
export PATH := $(PATH):$(HOME)/.cargo/bin:/usr/local/sbin:/usr/sbin:/sbin
TARGET := $(or $(CARGO_TARGET_DIR),target)

.DEFAULT_GOAL := help
.PHONY: help demo test check bench

help:
	@echo 'make demo            build Pitwheel and run its demo'
	@echo 'make test            run all tests on a private Postgres'
	@echo 'make check           layout, formatting, lints, docs, licences, unused dependencies'
	@echo 'make bench CASE=...  run the benchmarks, or one case of them'
	@echo
	@echo 'Each target first installs what is missing, and prints what it installs (scripts/setup).'

demo:
	@scripts/setup demo
	cargo build --release -p pitwheel-cli -p pitwheel-feeds -p pitwheel-ingest
	@$(TARGET)/release/pitwheel demo
	@$(TARGET)/release/pitwheel-feeds demo
	@$(TARGET)/release/pitwheel-ingest demo

test:
	@scripts/setup test
	@scripts/kafka $(TARGET)
	cargo test --workspace --all-features
	cargo build -p pitwheel-cli
	@scripts/test-python $(TARGET)
	@scripts/test-typescript $(TARGET)

check:
	@scripts/setup check
	@scripts/circles --self-test
	scripts/circles
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --all-features -- -D warnings
	RUSTDOCFLAGS='-D warnings' cargo doc --no-deps --workspace --all-features
	cargo deny --all-features check bans licenses sources
	@scripts/advisories
	cargo machete --skip-target-dir

bench:
	@scripts/setup bench
	@scripts/kafka $(TARGET)
	@scripts/venv $(TARGET)
	cargo run --release -p pitwheel-bench -- $(CASE)
