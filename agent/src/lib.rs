//! Sells shared LLM access through a Waldur marketplace offering.
