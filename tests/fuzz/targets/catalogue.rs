//! Whatever stands in the file.
#![no_main]

use libfuzzer_sys::fuzz_target;
use llm_access_tests::decoders::read_catalogue;

fuzz_target!(|data: &[u8]| {
    read_catalogue(data);
});
