//! The program as `llm-access-agent` is, under a name that tests of this package can ask Cargo for.

fn main() -> std::process::ExitCode {
    llm_access_agent::cli::main()
}
