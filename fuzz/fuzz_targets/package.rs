//! Any accepted package is converted between both forms without loss.
#![no_main]

use libfuzzer_sys::fuzz_target;
use repertoire_core::Package;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(package) = Package::from_json(bytes) {
        let json = package.to_json();
        let folder = package.to_folder().unwrap();
        let back = Package::from_folder(folder).unwrap();
        assert_eq!(String::from_utf8(back.to_json()), String::from_utf8(json));
    }
});
