//! Sixty groups and seven servers, of which most differ in something: by keyboard, on a phone, in light and dark.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{browse, refreshed, says, screenshot};
use testkit::chromium::Chromium;
use testkit::cluster::{LONG, Single};
use testkit::double::ServedResource;
use testkit::registry::Registry;
use testkit::wait::eventually;

/// Group versions with their resources.
type Served = BTreeMap<String, Vec<String>>;

const GROUPS: usize = 60;

/// One server with sixty groups and a proxy; six more that are only in etcd.
async fn big() -> Single {
    let single = Single::new().await;
    let groups = |status: &Value| {
        let resources = status["resources"].as_array().unwrap().iter();
        let local = resources.filter(|resource| resource["local"] == true);
        let mut groups: Vec<_> = local
            .map(|resource| resource["group"].to_string())
            .collect();
        groups.dedup();
        groups.len()
    };
    let first = groups(&single.proxy.statusz().await);
    for number in first..GROUPS {
        let group = format!("group-{number:02}.operators.example.com");
        for resource in ["backups", "schedules"] {
            let resource = ServedResource::new(&group, "v1alpha1", resource, "Thing");
            single.double.add_resource(resource);
        }
    }
    eventually("the proxy knows sixty groups", LONG, async || {
        groups(&single.proxy.statusz().await) == GROUPS
    })
    .await;
    write_peers(&single).await;
    eventually("the proxy knows seven servers", LONG, async || {
        let status = single.proxy.statusz().await;
        status["peers"]
            .as_array()
            .is_some_and(|peers| peers.len() == 6)
    })
    .await;
    single
}

async fn write_peers(single: &Single) {
    let registry = Registry::new(single.ground.etcd.client().await, "/registry");
    let all = served(&single.proxy.statusz().await);
    let without = |group: &str| {
        let mut served = all.clone();
        served.retain(|name, _| !name.starts_with(group));
        served
    };
    let mut more = all.clone();
    more.insert(
        "resource.k8s.io/v1".to_owned(),
        vec!["deviceclasses".to_owned()],
    );
    let mut fewer = all.clone();
    fewer.insert("apps/v1".to_owned(), vec!["deployments".to_owned()]);
    let peers = [
        (
            "imkgstwjs6opnbwk2ixluu6fiq",
            all.clone(),
            "1.36",
            Some(true),
        ),
        (
            "7qz4v2hnrm3ykcd5t6w8xjpb2a",
            without("autoscaling/"),
            "1.36",
            Some(true),
        ),
        ("b4fh6t2vq5n7zcm3x2kdyrwp6e", more, "1.37", Some(true)),
        ("w3y5d7jq2mzt4nkr6xcvb2hpfa", fewer, "1.36", Some(false)),
        (
            "qk2n5xr7tz3wvmc4jyd6fhb2pe",
            without("batch/"),
            "1.35",
            None,
        ),
        (
            "zt4m6kq2wc7nxv3jr5ydh2bfpa",
            all.clone(),
            "1.36",
            Some(true),
        ),
    ];
    for (number, (hash, served, version, initialized)) in peers.into_iter().enumerate() {
        let (id, port) = (
            format!("apiserver-{hash}"),
            20000 + u16::try_from(number).unwrap(),
        );
        let record = json!({
            "endpoint": format!("127.0.0.1:{port}"),
            "binaryVersion": format!("v{version}.0"),
            "compatibilityVersion": version,
            "resources": served,
        });
        let revision = registry
            .put(&registry.server(&id), &record.to_string())
            .await;
        if let Some(initialized) = initialized {
            // The last one's record is older than what it serves.
            let revision = if number == 5 { i64::MAX } else { revision };
            registry.put_live(&id, port, initialized, revision).await;
        }
    }
}

/// What the proxy's own server lists, as a record has it.
fn served(status: &Value) -> Served {
    let mut served = Served::new();
    for listed in status["resources"].as_array().unwrap() {
        let text = |key: &str| listed[key].as_str().unwrap().to_owned();
        let joined = |one: String, other: String| match (one.is_empty(), other.is_empty()) {
            (true, _) => other,
            (_, true) => one,
            _ => format!("{one}/{other}"),
        };
        let resources = served
            .entry(joined(text("group"), text("version")))
            .or_default();
        resources.push(joined(text("resource"), text("subresource")));
    }
    served
}

/// Texts whose contrast with what is behind them is below 4.5, and how many there are.
const CONTRAST: &str = r#"(() => {
  const rgba = (text) => {
    const [r, g, b, a = 1] = text.match(/[\d.]+/g).map(Number);
    return { rgb: [r, g, b], a };
  };
  const luminance = (rgb) => {
    const [r, g, b] = rgb.map((part) => {
      const share = part / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const { rgb, a } = rgba(getComputedStyle(at).backgroundColor);
      if (a === 1) return rgb;
      if (a > 0) throw new Error("what shines through is not reckoned with here");
    }
    throw new Error("nothing is behind it");
  };
  let all = 0;
  const poor = [];
  for (const element of document.body.querySelectorAll("*")) {
    const text = [...element.childNodes].filter((node) => node.nodeType === 3).map((node) => node.data).join("");
    if (!(text.trim() || element.value) || !element.checkVisibility() || element.matches("script, noscript")) continue;
    all += 1;
    const [one, other] = [rgba(getComputedStyle(element).color).rgb, behind(element)].map(luminance);
    const contrast = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    if (!(contrast >= 4.5)) poor.push(`${element.tagName} ${element.className}: ${contrast} ${text}`);
  }
  return { all, poor };
})()"#;

async fn is_legible(chromium: &mut Chromium) {
    for scheme in ["light", "dark"] {
        chromium.look(1280, scheme).await;
        let seen = chromium.evaluate(CONTRAST).await;
        assert_eq!(seen["poor"], json!([]), "{scheme}");
        assert!(seen["all"].as_u64() > Some(500), "{scheme}: {seen}");
    }
}

#[tokio::test]
async fn sixty_groups_and_seven_servers_stay_readable() {
    let single = big().await;
    let mut chromium = browse(&single.ground, &single.proxy).await;
    says(
        &mut chromium,
        "#differences-note",
        &["4 groups, not listed alike by 7 servers"],
    )
    .await;
    says(&mut chromium, "#alike-note", &["Alike: 57 groups"]).await;
    let states = [
        "this server",
        "target",
        "live: not initialized",
        "absent",
        "target: resources not current",
    ];
    says(&mut chromium, "#differences thead", &states).await;
    says(&mut chromium, "#peers", &states[1..]).await;
    chromium.screenshot(&screenshot("big")).await;

    chromium.look(360, "light").await;
    chromium.screenshot(&screenshot("phone")).await;
    chromium
        .evaluate("document.getElementById('alike-details').open = true")
        .await;
    says(&mut chromium, "#alike", &["group-59.operators.example.com"]).await;
    let expand = "document.querySelectorAll('button[data-group]').forEach((each) => each.click())";
    chromium.evaluate(expand).await;
    says(
        &mut chromium,
        "#alike",
        &["v1alpha1 backups", "v1alpha1 schedules"],
    )
    .await;
    for width in [360, 1280] {
        chromium.look(width, "light").await;
        let sizes = chromium
            .evaluate("[document.scrollingElement.scrollWidth, innerWidth]")
            .await;
        assert!(sizes[0].as_u64() <= sizes[1].as_u64(), "{sizes}");
        assert_eq!(sizes[1], width);
    }
    is_legible(&mut chromium).await;
    chromium.screenshot(&screenshot("big-dark")).await;

    // Head and first column stay while the rest moves below them.
    let moved = "(() => {
      const box = document.getElementById('alike');
      const place = () => [box.querySelector('thead th'), box.querySelector('tbody th')]
        .map((cell) => [cell.getBoundingClientRect().top, cell.getBoundingClientRect().left]);
      const before = place();
      box.scrollTo(300, 400);
      const after = place();
      return { head: before[0][0] - after[0][0], first: before[1][1] - after[1][1], row: before[1][0] - after[1][0] };
    })()";
    chromium.look(360, "light").await;
    let moved = chromium.evaluate(moved).await;
    assert_eq!(moved, json!({"head": 0, "first": 0, "row": 400}));
    assert_eq!(chromium.complaints().await, [] as [Value; 0]);
}

/// What has the focus: its ID, or its group.
const FOCUSED: &str = "document.activeElement.id || document.activeElement.dataset.group || \
    document.activeElement.className || document.activeElement.textContent";

#[tokio::test]
async fn everything_is_within_reach_of_the_keyboard() {
    let single = big().await;
    let mut chromium = browse(&single.ground, &single.proxy).await;
    says(&mut chromium, "#differences-note", &["4 groups"]).await;
    let mut reached = Vec::new();
    while reached.last() != Some(&json!("apps")) {
        chromium.press("Tab").await;
        reached.push(chromium.evaluate(FOCUSED).await);
        assert!(reached.len() < 20, "{reached:?}");
    }
    assert_eq!(reached[0], "skip");
    assert!(reached.contains(&json!("filter")), "{reached:?}");
    let outline = "getComputedStyle(document.activeElement).outlineStyle";
    assert_eq!(chromium.evaluate(outline).await, "solid");

    let expanded = "document.activeElement.getAttribute('aria-expanded')";
    assert_eq!(chromium.evaluate(expanded).await, "false");
    chromium.press("Enter").await;
    assert_eq!(chromium.evaluate(expanded).await, "true");
    says(
        &mut chromium,
        "#differences tr.detail",
        &["v1 deployments", "yes", "no"],
    )
    .await;
    refreshed(&mut chromium).await;
    assert_eq!(chromium.evaluate(FOCUSED).await, "apps");
    assert_eq!(chromium.evaluate(expanded).await, "true");

    chromium
        .evaluate("document.getElementById('filter').focus()")
        .await;
    chromium.write("HorizontalPod").await;
    says(&mut chromium, "#differences-note", &["1 of 4 groups"]).await;
    let rows = chromium.text("#differences tbody tr").await;
    assert!(
        rows.contains("autoscaling") && !rows.contains("apps"),
        "{rows}"
    );
    assert_eq!(chromium.complaints().await, [] as [Value; 0]);
}
