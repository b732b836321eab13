//! What to do when TLS to a peer does not come about.

use crate::gate::Peer;

/// The cure for a failure of TLS, by what the transport said of it; none where it was about something else.
#[must_use]
pub fn cure(peer: Peer, message: &str) -> Option<String> {
    let (address, authorities) = match peer {
        Peer::Waldur => ("waldur.api_url", "put it into waldur.ca_file"),
        Peer::Gateway => ("gateway.url", "put it into gateway.ca_file"),
        Peer::Secrets => ("the server in the kubeconfig", "put it into certificate-authority of the kubeconfig"),
    };
    let said = |words: &str| message.contains(words);
    if said("invalid peer certificate") {
        Some(if said("expired") {
            format!("renew the certificate of the server behind {address}")
        } else if said("not valid yet") {
            "compare the clock of this machine with the certificate's first day".to_owned()
        } else if said("not valid for name") {
            format!("write {address} with a name that the certificate has")
        } else {
            format!("if the certificate is signed by an authority of your own, {authorities}")
        })
    } else if said("received corrupt message") {
        Some(format!("nothing speaks TLS there: correct the port or the scheme of {address}"))
    } else {
        None
    }
}

/// A message with the cure behind it, where there is one.
pub(crate) fn with_cure(peer: Peer, message: String) -> String {
    match cure(peer, &message) {
        Some(cure) => format!("{message}; {cure}"),
        None => message,
    }
}
