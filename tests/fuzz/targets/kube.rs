//! Whatever the peer says: the first byte chooses the status, the rest is the body.
#![no_main]

use libfuzzer_sys::fuzz_target;
use llm_access_tests::decoders::Fed;

thread_local! {
    static FED: Fed = Fed::new();
}

fuzz_target!(|data: &[u8]| {
    let Some((first, body)) = data.split_first() else { return };
    let status = [200, 200, 200, 201, 400, 404, 409, 500][usize::from(first % 8)];
    FED.with(|fed| {
        fed.answer(status, body);
        fed.ask_kube();
    });
});
