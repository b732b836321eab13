//! Secrets by server-side apply and the Lease of the agent.
