//! Writes the keys of proxies and apiservers into etcd.

use std::net::SocketAddr;
use std::time::Duration;

use etcd_client::Client;
use serde_json::json;
use tokio::time::timeout;

use super::wait::eventually;

/// For one attempt.
const ATTEMPT: Duration = Duration::from_secs(2);
/// For all attempts together.
const LONG: Duration = Duration::from_secs(30);

#[derive(Clone)]
pub struct Registry {
    client: Client,
    prefix: String,
}

impl Registry {
    /// Of the cluster with etcd prefix `prefix`.
    pub fn new(client: Client, prefix: &str) -> Self {
        Self {
            client,
            prefix: prefix.to_owned(),
        }
    }

    /// Writes a server's record. Returns the revision of the write. `group_version`: `example.com/v1` for example.
    pub async fn put_record(
        &self,
        id: &str,
        port: u16,
        group_version: &str,
        resources: &[&str],
    ) -> i64 {
        let value = json!({"endpoint": format!("127.0.0.1:{port}"), "resources": {group_version: resources}});
        self.put(&self.server(id), &value.to_string()).await
    }

    /// Writes a live key that refers to the record of `record_revision`.
    pub async fn put_live(&self, id: &str, port: u16, initialized: bool, record_revision: i64) {
        let endpoint = format!("127.0.0.1:{port}");
        let value = json!({"endpoint": endpoint, "initialized": initialized, "ready": initialized,
            "recordRevision": record_revision});
        self.put(&self.live(id), &value.to_string()).await;
    }

    /// What a kube-apiserver that advertises this address writes, and nobody lets expire: its key below `masterleases/`.
    pub async fn advertise(&self, address: SocketAddr) {
        let value = r#"{"apiVersion":"v1","kind":"Endpoints"}"#;
        self.put(&self.master_lease(address.ip()), value).await;
    }

    pub fn master_lease(&self, address: impl std::fmt::Display) -> String {
        format!("{}/masterleases/{address}", self.prefix)
    }

    /// A CustomResourceDefinition, `things.example.com` for example, that serves `v1`.
    pub async fn put_definition(&self, name: &str) -> i64 {
        self.put_definition_of(name, "v1").await
    }

    pub async fn put_definition_of(&self, name: &str, version: &str) -> i64 {
        let value = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": name},
            "spec": {"versions": [{"name": version, "served": true, "storage": true}]},
        });
        self.put(&self.definition(name), &value.to_string()).await
    }

    pub fn server(&self, id: &str) -> String {
        format!("/kube-interop-proxy{}/servers/{id}", self.prefix)
    }

    pub fn live(&self, id: &str) -> String {
        format!("/kube-interop-proxy{}/live/{id}", self.prefix)
    }

    pub fn definition(&self, name: &str) -> String {
        format!(
            "{}/apiextensions.k8s.io/customresourcedefinitions/{name}",
            self.prefix
        )
    }

    /// `v1.example.com` for example.
    pub fn api_service(&self, name: &str) -> String {
        format!("{}/apiregistration.k8s.io/apiservices/{name}", self.prefix)
    }

    pub async fn get(&self, key: &str) -> Option<Vec<u8>> {
        let answer = eventually(&format!("{key} is read"), LONG, async || {
            let mut client = self.client.clone();
            attempt(client.get(key, None)).await
        })
        .await;
        answer.kvs().first().map(|kv| kv.value().to_vec())
    }

    pub async fn delete(&self, key: &str) {
        eventually(&format!("{key} is deleted"), LONG, async || {
            let mut client = self.client.clone();
            attempt(client.delete(key, None)).await
        })
        .await;
    }

    /// Forgets all history up to the newest revision, which is the answer.
    pub async fn compact(&self) -> i64 {
        eventually("etcd compacts", LONG, async || {
            let mut client = self.client.clone();
            let newest = attempt(client.get("newest", None)).await?;
            let revision = newest.header().expect("a header").revision();
            attempt(client.compact(revision, None)).await?;
            Ok::<_, String>(revision)
        })
        .await
    }

    /// Writes a key; the revision of it.
    pub async fn put(&self, key: &str, value: &str) -> i64 {
        self.put_bytes(key, value.as_bytes()).await
    }

    pub async fn put_bytes(&self, key: &str, value: &[u8]) -> i64 {
        let answer = eventually(&format!("{key} is written"), LONG, async || {
            let mut client = self.client.clone();
            attempt(client.put(key, value, None)).await
        })
        .await;
        answer.header().expect("a header").revision()
    }
}

async fn attempt<T>(
    request: impl Future<Output = Result<T, etcd_client::Error>>,
) -> Result<T, String> {
    match timeout(ATTEMPT, request).await {
        Ok(answer) => answer.map_err(|error| error.to_string()),
        Err(_) => Err("no answer".to_owned()),
    }
}
