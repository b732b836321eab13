//! Typed client for the part of the Waldur marketplace API that a provider's agent speaks.
