//! Which servers to ask for a discovery document, in order. Pure.
//!
//! An initialized local apiserver is asked first: it knows what it serves and whether the caller may read it. Peers are
//! asked for what it lacks.

/// A server, or a choice of servers, to try for a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RouteStop {
    /// The local apiserver.
    Local,
    /// Any of these servers of the snapshot, by index.
    Peers(Vec<usize>),
}

/// The order with `discovery.mode: Merged`. `sure`: the local apiserver is initialized, and what it lacks is known.
/// `holders`: targets that list the document's group version, if it has one. `targets`: all targets.
pub fn merged(sure: bool, holders: Vec<usize>, targets: &[usize]) -> Vec<RouteStop> {
    match (sure, holders.is_empty()) {
        (true, true) => vec![RouteStop::Local],
        (true, false) => vec![RouteStop::Local, RouteStop::Peers(holders)],
        (false, true) => vec![RouteStop::Peers(targets.to_vec()), RouteStop::Local],
        (false, false) => vec![RouteStop::Peers(holders), RouteStop::Local],
    }
}

/// The order with `discovery.mode: Newest`. `newer`: targets that are newer than the local apiserver, in order.
/// `targets`: all targets, tried if the local apiserver is not initialized.
pub fn newest(initialized: bool, newer: Vec<usize>, targets: &[usize]) -> Vec<RouteStop> {
    let mut stops: Vec<RouteStop> = newer
        .into_iter()
        .map(|index| RouteStop::Peers(vec![index]))
        .collect();
    if !initialized {
        stops.push(RouteStop::Peers(targets.to_vec()));
    }
    stops.push(RouteStop::Local);
    stops
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_local_apiserver_is_asked_first_unless_it_is_not_initialized() {
        let peers = |indices: &[usize]| RouteStop::Peers(indices.to_vec());
        assert_eq!(merged(true, vec![], &[0, 1]), [RouteStop::Local]);
        assert_eq!(
            merged(true, vec![1], &[0, 1]),
            [RouteStop::Local, peers(&[1])]
        );
        assert_eq!(
            merged(false, vec![], &[0, 1]),
            [peers(&[0, 1]), RouteStop::Local]
        );
        assert_eq!(
            merged(false, vec![1], &[0, 1]),
            [peers(&[1]), RouteStop::Local]
        );
    }

    #[test]
    fn newer_ones_are_asked_before_the_local_apiserver_in_their_order() {
        let peer = |index| RouteStop::Peers(vec![index]);
        assert_eq!(newest(true, vec![], &[0, 1]), [RouteStop::Local]);
        assert_eq!(
            newest(true, vec![1, 0], &[0, 1, 2]),
            [peer(1), peer(0), RouteStop::Local]
        );
        let all = RouteStop::Peers(vec![0, 1]);
        assert_eq!(
            newest(false, vec![1], &[0, 1]),
            [peer(1), all, RouteStop::Local]
        );
    }
}
