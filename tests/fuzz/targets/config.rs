//! Whatever stands in the file.
#![no_main]

use libfuzzer_sys::fuzz_target;
use llm_access_tests::decoders::read_config;

fuzz_target!(|data: &[u8]| {
    read_config(data);
});
