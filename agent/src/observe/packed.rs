//! What a pass over everything keeps of each thing until it is compared.

use litellm_client::{Key, Team};
use serde_json::{Map, Value};
use waldur_client::Resource;

/// A thing with maps of JSON, which are kept as text: as trees they take several times the room, and a pass over ten thousand
/// resources keeps sixty thousand of them.
#[derive(Debug)]
pub struct Packed<T> {
    bare: Box<T>,
    maps: Box<str>,
}

/// What has maps of JSON.
pub trait Maps: Clone {
    /// All of them, always in the same order.
    fn maps(&mut self) -> Vec<&mut Map<String, Value>>;
}

impl Maps for Team {
    fn maps(&mut self) -> Vec<&mut Map<String, Value>> {
        vec![&mut self.metadata]
    }
}

impl Maps for Key {
    fn maps(&mut self) -> Vec<&mut Map<String, Value>> {
        vec![&mut self.metadata]
    }
}

impl Maps for Resource {
    fn maps(&mut self) -> Vec<&mut Map<String, Value>> {
        vec![&mut self.options, &mut self.attributes, &mut self.backend_metadata]
    }
}

impl<T: Maps> Packed<T> {
    /// Packs it.
    pub fn new(mut of: T) -> Self {
        let maps: Vec<Map<String, Value>> = of.maps().into_iter().map(std::mem::take).collect();
        // JSON that was read can be written.
        let text = serde_json::to_string(&maps).unwrap_or_default();
        Self { bare: Box::new(of), maps: text.into() }
    }

    /// It without its maps.
    #[must_use]
    pub fn bare(&self) -> &T {
        &self.bare
    }

    /// It as it was read.
    #[must_use]
    pub fn whole(&self) -> T {
        let mut whole = T::clone(&self.bare);
        // What was written here can be read. If it could not, nothing would be done after it: every write reads its one
        // resource anew.
        let maps: Vec<Map<String, Value>> = serde_json::from_str(&self.maps).unwrap_or_default();
        for (place, map) in whole.maps().into_iter().zip(maps) {
            *place = map;
        }
        whole
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_is_unpacked_is_what_was_packed() {
        let metadata = r#"{"a":{"b":[1,{"c":null}],"d":123456789012345678901234567890.10},"e":"\u0000\ud83d\ude00\"","f":1e300,"g":-0.0,"h":0.30000000000000004,"i":2.2250738585072011e-308,"j":9007199254740993.5}"#;
        let resource = format!(
            r#"{{"uuid":"{0}","state":"OK","name":"aurora","options":{{"models":["all"]}},"attributes":{{}},"backend_metadata":{metadata}}}"#,
            "0".repeat(32)
        );
        let resource: Resource = serde_json::from_str(&resource).unwrap();
        assert!(resource.backend_metadata.len() == 7 && resource.options.len() == 1);
        let packed = Packed::new(resource.clone());
        assert_eq!(packed.whole(), resource);
        assert!(packed.bare().backend_metadata.is_empty() && packed.bare().name == "aurora");
        let team: Team = serde_json::from_str(&format!(r#"{{"team_id":"t","models":["m"],"metadata":{metadata}}}"#)).unwrap();
        assert_eq!(Packed::new(team.clone()).whole(), team);
        let key = Key { hash: "h".into(), metadata: team.metadata, ..Key::default() };
        assert_eq!(Packed::new(key.clone()).whole(), key);
    }
}
