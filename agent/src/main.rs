//! The `llm-access-agent` program.

fn main() -> std::process::ExitCode {
    llm_access_agent::cli::main()
}
