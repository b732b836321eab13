//! Whatever the peer says: the first byte chooses the status, the rest is the body.
#![no_main]

use libfuzzer_sys::fuzz_target;
use llm_access_tests::decoders::{Fed, read_answer};

fuzz_target!(|data: &[u8]| {
    read_answer(data, Fed::ask_gateway);
});
