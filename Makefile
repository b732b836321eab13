# `make help` lists the targets. All but test-real, manifests and check-deploy need only the Rust toolchain, git and make.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

CARGO ?= cargo
# Where cargo puts what it builds, whoever decided it: this Makefile, the environment or a cargo configuration.
TARGET = $(shell $(CARGO) metadata --no-deps --format-version 1 | sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p')
# The suites against real peers: which peers and LiteLLM variants, and what is passed to the test programs.
PEERS ?= litellm kube webui browser team-defaults no-custom-keys
REAL_ARGS ?= --test-threads=1
# What is passed to the bench: --only drift,usage --resources 1000,10000 --orders 1000 --json, or --compare BEFORE AFTER
BENCH_ARGS ?=
# Which faults `make sabotage` plants: all where it is empty.
FAULTS ?=
# Which files `make mutants` changes: by default what decides about money and deletion.
PLAN = agent/src/plan
FILES ?= $(PLAN)/removal.rs $(PLAN)/offering.rs $(PLAN)/access.rs $(PLAN)/mod.rs $(PLAN)/usage/amounts.rs $(PLAN)/usage/filing.rs \
	$(PLAN)/usage/upstreams.rs $(PLAN)/usage/ledger.rs $(PLAN)/usage/calls.rs agent/src/domain/limits.rs agent/src/domain/month.rs
# How long `make fuzz` runs each of its targets.
SECONDS ?= 60
# soak: for how long, or which world again
MINUTES ?= 10
SEED ?=
# remove-stale-waldur-component
COMPONENT ?=
CONFIG ?=
export COMPONENT CONFIG

.PHONY: help
help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | sort | awk -F '\t' '{ printf "  %-32s %s\n", $$1, $$2 }'

.PHONY: demo
demo: ## follow an order from request to closed, against the simulators
	$(CARGO) build -p llm-access-agent -p llm-access-fixtures
	'$(TARGET)/debug/demo' --agent '$(TARGET)/debug/llm-access-agent'

.PHONY: test
test: ## every test that needs nothing but the Rust toolchain
	$(CARGO) test --workspace

.PHONY: test-traces
test-traces: ## the agent built to send traces, and a collector that looks at them
	$(CARGO) test -p llm-access-tests --features otel --test traces

.PHONY: test-real
test-real: ## the same agent against a real LiteLLM, Kubernetes API and Open WebUI, and beside the Python agent (set up on first use, five to ten minutes)
	$(CARGO) build -p llm-access-agent
	$(CARGO) test -p llm-access-tests --features real --test 'real*' --no-run
	tests/real/run $(PEERS) -- $(CARGO) test -p llm-access-tests --features real --test 'real*' -- $(REAL_ARGS)
	$(CARGO) build -p llm-access-tests --bin bench
	tests/bench-peer/run '$(TARGET)/debug/llm-access-agent' '$(TARGET)/debug/bench' --resources 3

.PHONY: sabotage
sabotage: ## plant faults into a copy of the agent, one at a time, and see that the suites find them (FAULTS="name name"; about an hour)
	$(CARGO) run -q -p llm-access-tests --bin sabotage -- $(FAULTS)

.PHONY: mutants
mutants: ## change FILES="file file" in one small way at a time and see that the agent's unit tests fail (needs cargo-mutants; docs/testing.md)
	@if ! $(CARGO) mutants --version >/dev/null 2>&1; then \
		echo "cargo-mutants is not installed: cargo install --locked cargo-mutants" >&2; exit 2; \
	fi
	$(CARGO) mutants -p llm-access-agent $(foreach file,$(FILES),-f $(file)) -C=--lib --gitignore true --timeout 60 -o '$(TARGET)' -- --lib

.PHONY: fuzz
fuzz: ## feed the decoders with what a fuzzer makes up, SECONDS=60 each (needs a C++ compiler)
	tests/fuzz/run $(SECONDS)

.PHONY: soak
soak: ## live worlds from fresh seeds for MINUTES=10, or the one of SEED=n again (docs/testing.md)
	$(CARGO) build -q -p llm-access-tests --bin soak
	SEED='$(SEED)' MINUTES='$(MINUTES)' '$(TARGET)/debug/soak'

.PHONY: lint
lint: ## formatting, clippy and, when cargo-deny is installed, the dependency rules
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --all-features -- -D warnings
	@if $(CARGO) deny --version >/dev/null 2>&1; then \
		$(CARGO) deny check bans licenses sources; \
	else \
		echo "cargo-deny is not installed: the dependency rules of deny.toml were not checked"; \
	fi

.PHONY: bench
bench: ## measure the agent against its budgets
	@$(CARGO) build --release -p llm-access-agent -p llm-access-tests
	@'$(TARGET)/release/bench' --agent '$(TARGET)/release/llm-access-agent' $(BENCH_ARGS)

.PHONY: bench-peer
bench-peer: ## measure the Python agent waldur-site-agent beside this one
	@$(CARGO) build --release -p llm-access-agent -p llm-access-tests
	@tests/bench-peer/run '$(TARGET)/release/llm-access-agent' '$(TARGET)/release/bench' $(BENCH_ARGS)

.PHONY: dist
dist: ## the binary as it is deployed, in the target folder under dist/, with its size and, when cargo-cyclonedx is installed, what is in it
	$(CARGO) build --locked --profile dist -p llm-access-agent
	@CARGO='$(CARGO)' deploy/tools/dist '$(TARGET)/dist'

.PHONY: manifests
manifests: ## render deploy/manifests from the chart again
	deploy/tools/run manifests

.PHONY: check-deploy
check-deploy: ## chart, manifests, alert rules and Dockerfile with Helm, kubectl, promtool and hadolint (set up on first use, half a minute)
	deploy/tools/run check

.PHONY: remove-stale-waldur-component
remove-stale-waldur-component: ## remove one component from the offering: COMPONENT=key CONFIG=file (ARGS=--dry-run to look first)
	@if [ -z "$$COMPONENT" ]; then \
		echo "which component? make remove-stale-waldur-component COMPONENT=<key> CONFIG=<configuration file>" >&2; exit 2; \
	fi
	@if [ -z "$$CONFIG" ]; then \
		echo "whose configuration? make remove-stale-waldur-component COMPONENT=$$COMPONENT CONFIG=<configuration file>" >&2; exit 2; \
	fi
	$(CARGO) run -q -p llm-access-agent -- --config "$$CONFIG" components remove $(ARGS) -- "$$COMPONENT"
