//! A real etcd 3.5, which tells its progress every ten minutes, or when it is asked.

use serde_json::json;

use crate::etcd::outages::LISTS;
use crate::etcd::reconnecting::ids;
use crate::watches::bookmarks::{
    CONFIG_MAPS, Events, last_bookmark, list_revision, watch_path, write,
};
use testkit::cluster::{Cluster, Ground, HPAS, LONG, patient};
use testkit::double::v1_20;
use testkit::etcd::EtcdOptions;
use testkit::modern::ModernApiServer;
use testkit::process::Signal;
use testkit::proxy::{Proxy, Until};
use testkit::registry::Registry;
use testkit::wait::eventually;

#[tokio::test]
async fn records_are_read_followed_and_written_in_etcd_3_5() {
    let ground = Ground::with(EtcdOptions::v3_5()).await;
    let mut cluster = Cluster::on(ground, v1_20(), |_, options| patient(options)).await;
    let lists = cluster.proxy_a.metric(LISTS, &[]).await;
    let admin = cluster.client().cert("admin");
    for round in 0..3 {
        let id = format!("w-{round}");
        Registry::new(cluster.ground.etcd.client().await, "/registry")
            .put_record(&id, 20000 + round, "w.example/v1", &["things"])
            .await;
        for proxy in [&cluster.proxy_a, &cluster.proxy_b] {
            eventually("a change arrives", LONG, async || {
                ids(&proxy.statusz().await).contains(&id)
            })
            .await;
        }
        assert_eq!(admin.get(HPAS).await.code(), 200);
        cluster.ground.etcd.restart().await;
    }
    // Watches go on where they were.
    assert_eq!(cluster.proxy_a.metric(LISTS, &[]).await, lists);
}

#[tokio::test]
async fn last_bookmarks_need_no_timed_progress_of_etcd_3_5() {
    let ground = Ground::with(EtcdOptions::v3_5()).await;
    let Ground { dir, pki, etcd } = &ground;
    let server = ModernApiServer::start(dir.path(), pki, etcd, &[]).await;
    let admin = server.admin();
    let options = ground
        .proxy("a", server.addr())
        .set("watch.bookmarkOnShutdown", "true")
        .set("shutdown.drain", "4s");
    let mut proxy = Proxy::start(options.until(Until::Ready)).await;
    write(admin, CONFIG_MAPS, "a", &json!({})).await;
    let from = list_revision(admin, CONFIG_MAPS).await;
    let client = proxy.client(pki).cert("admin");
    let quiet = Events::open(&client, &watch_path(CONFIG_MAPS, from)).await;
    let put = etcd.client().await.put("/elsewhere", "x", None).await;
    let newest = put.unwrap().header().unwrap().revision();
    proxy.process().signal(Signal::Term);
    let (seen, _) = quiet.rest().await;
    let last = last_bookmark(&seen);
    assert!(
        last.is_some_and(|revision| revision >= newest),
        "{last:?} < {newest}\n{}",
        proxy.log_tail()
    );
    assert_eq!(proxy.process().wait(LONG).await.code(), Some(0));
}
