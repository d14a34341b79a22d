//! Sidecar reverse proxy that keeps kube-apiserver's answers right while the servers of a cluster differ.
