//! Lists and watches ConfigMaps through the layer, at a server that may not be initialized yet.
//!
//! ```text
//! cargo run -p if-ready --example kube-rs            # the cluster of ~/.kube/config or $KUBECONFIG; ends with Ctrl-C
//! ```

use std::error::Error;
use std::pin::pin;

use futures_util::TryStreamExt as _;
use http::Request;
use if_ready::{IfReadyLayer, is_ready};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::ListParams;
use kube::client::{Body, ClientBuilder};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, Config, ResourceExt as _};

/// Waits until the server is initialized, and repeats requests as client-go does.
pub fn client(mut config: Config) -> kube::Result<Client> {
    // kube's own retries would come first and follow other rules.
    config.default_retry = false;
    let layer = IfReadyLayer::new(Body::try_clone);
    Ok(ClientBuilder::try_from(config)?.with_layer(&layer).build())
}

/// Reports existing ConfigMaps and their changes until the watch fails for good.
pub async fn follow(client: Client, mut say: impl FnMut(String)) -> Result<(), Box<dyn Error>> {
    let answer = client.send(Request::get("/api").body(Body::empty())?);
    say(match is_ready(answer.await?.headers()) {
        Some(ready) => format!("initialized: {ready}"),
        None => "initialized: the server does not say".to_owned(),
    });

    let api: Api<ConfigMap> = Api::default_namespaced(client);
    for found in api.list(&ListParams::default()).await? {
        say(format!("there is {}", found.name_any()));
    }
    let changes = watcher(api, watcher::Config::default());
    let mut changes = pin!(changes.default_backoff().touched_objects());
    while let Some(changed) = changes.try_next().await? {
        say(format!("changed: {}", changed.name_any()));
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let client = client(Config::infer().await?)?;
    follow(client, |line| println!("{line}")).await
}
