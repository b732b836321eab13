//! Typed client for the management API of a LiteLLM proxy.
