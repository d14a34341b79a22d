//! Promises of SECURITY.md that no other test checks.

use std::path::Path;

use testkit::cluster::Single;
use testkit::double::{Fault, ScriptedAnswer};

/// All Rust below a directory, without indentation.
fn sources(dir: &Path, text: &mut String) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, text);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            for line in std::fs::read_to_string(path).unwrap().lines() {
                text.push_str(line.trim_start());
                text.push('\n');
            }
        }
    }
}

#[test]
fn every_threat_has_tests_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut code = String::new();
    for dir in ["src", "tests"] {
        sources(&root.join(dir), &mut code);
    }
    let page = std::fs::read_to_string(root.join("SECURITY.md")).unwrap();
    let (_, threats) = page.split_once("\n## Threats\n").unwrap();
    let rows = threats.lines().filter(|line| line.starts_with('|'));
    // Behind the heads and the line below them.
    let rows: Vec<_> = rows.skip(2).collect();
    assert!(rows.len() > 20);
    for row in rows {
        let cells: Vec<_> = row.trim_matches('|').split('|').collect();
        assert_eq!(cells.len(), 3, "{row}");
        let names: Vec<_> = cells[2].split('`').skip(1).step_by(2).collect();
        assert!(!names.is_empty(), "{row}");
        for name in names {
            assert!(
                code.contains(&format!("]\nasync fn {name}("))
                    || code.contains(&format!("]\nfn {name}(")),
                "{name}"
            );
        }
    }
}

#[tokio::test]
async fn a_redirect_is_passed_on_and_never_followed() {
    let world = Single::new().await;
    let elsewhere = format!("https://{}/elsewhere", world.double.addr());
    for code in [301, 302, 307, 308] {
        let scripted = ScriptedAnswer::new(code).header("location", &elsewhere);
        world
            .double
            .set_fault("/told", Some(Fault::Answer(Box::new(scripted))));
        for client in world.admins() {
            let answer = client.get("/told").await;
            assert_eq!(
                (answer.code(), answer.header("location")),
                (code, elsewhere.as_str())
            );
        }
    }
    assert_eq!(world.double.count("/told"), 8);
    assert_eq!(world.double.count("/elsewhere"), 0);
}
