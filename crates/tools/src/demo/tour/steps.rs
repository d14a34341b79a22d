//! The steps, in order, and what is expected of each.

use std::time::Instant;

use serde_json::Value;

use super::Tour;
use super::known::Known;
use crate::shell::{Who, curl, digest, listed, names};
use crate::stage::{ApiServer, GROUP};

const ADMIN: Who<'_> = Who::Certificate("admin");
const ALICE: Who<'_> = Who::Certificate("alice");
/// What only apiserver B serves.
const AUTOSCALERS: &str = "/apis/autoscaling/v1/horizontalpodautoscalers";
const AUTOSCALERS_HERE: &str = "/apis/autoscaling/v1/namespaces/default/horizontalpodautoscalers";

impl Tour {
    pub async fn go(&mut self) {
        self.who_serves_what().await;
        self.served_locally().await;
        self.false_not_found().await;
        self.rerouted().await;
        self.written().await;
        self.who_is_asking().await;
        self.true_not_found().await;
        self.if_ready().await;
        self.death().await;
        self.return_of_b().await;
    }

    async fn who_serves_what(&mut self) {
        self.heading("Who serves what");
        self.terminal.prose(
            "Each proxy publishes in etcd what its apiserver serves, and follows what the others publish.
             The status page of A's proxy (plain HTTP, loopback only) shows what it knows, here condensed:",
        );
        let admin = self.stage.a.proxy.admin();
        let line = format!("curl -sS 'http://{admin}/statusz?format=json'");
        let output = self.run(&line).await;
        let status: Value = serde_json::from_str(&output.stdout).unwrap_or_default();
        let known = Known::of(&status);
        for line in &known.lines {
            self.terminal.answer(line);
        }
        // Of two versions B may have more that A has not.
        let is_seen = known.groups_of_b_alone.iter().any(|group| group == GROUP);
        let seen = format!("only at B: {}", listed(&known.groups_of_b_alone));
        self.check("statusz", "only at B: autoscaling", seen, is_seen);
    }

    async fn served_locally(&mut self) {
        self.heading("What A serves itself");
        self.terminal.prose(
            "An ordinary request, as certificate user kubernetes-admin. A's proxy hands it to A.",
        );
        let line = curl(self.proxy_a(), ADMIN, "", "/api/v1/namespaces");
        self.expect("namespaces through A's proxy", &line, 200, &[])
            .await;
    }

    async fn false_not_found(&mut self) {
        self.heading("The problem: a false 404");
        self.terminal.prose(
            "The same user asks apiserver A itself, past its proxy, for what only B serves. Garbage collectors and
             namespace controllers take such a 404 for \"there are none\", and delete things.",
        );
        let line = curl(self.stage.a.api_server.addr(), ADMIN, "", AUTOSCALERS);
        self.expect("autoscalers, straight to A", &line, 404, &[])
            .await;
    }

    async fn rerouted(&mut self) {
        self.heading("The same through A's proxy: served by B");
        self.terminal
            .prose("A's proxy knows from etcd that B lists this, and sends it to B's proxy. A metric counts that.");
        let before = self.rerouted_so_far().await;
        let line = curl(self.proxy_a(), ADMIN, "", AUTOSCALERS);
        self.expect("autoscalers through A's proxy", &line, 200, &[])
            .await;
        let after = self.rerouted_so_far().await;
        let seen = format!("{before} -> {after}");
        self.check(
            "rerouted requests counted",
            "one more",
            seen,
            after == before + 1,
        );
    }

    async fn written(&mut self) {
        self.heading("Writes go the same way");
        self.terminal
            .prose("One request is sent once, to one server.");
        let line = curl(
            self.proxy_a(),
            ADMIN,
            "-H 'Content-Type: application/json' -d @hpa.json",
            AUTOSCALERS_HERE,
        );
        self.expect("create an autoscaler", &line, 201, &[]).await;
        let line = curl(self.proxy_a(), ADMIN, "", AUTOSCALERS_HERE);
        let answer = self.expect("list it", &line, 200, &[]).await;
        let names = names(&answer.body);
        self.check("the list has it", "web", listed(&names), names == ["web"]);
    }

    async fn who_is_asking(&mut self) {
        self.heading("Whoever asks stays who they are");
        self.terminal.prose(
            "A certificate user cannot simply be passed on: the key is at the client. The proxy asserts the user's name
             and groups as an aggregator does (X-Remote-User), to the apiserver and to peers. Tokens travel untouched.",
        );
        if self.has_kubectl().await {
            self.terminal.plain("\nkubectl with a client certificate:");
            let line =
                format!("kubectl --kubeconfig=kubeconfig --context=a get --raw {AUTOSCALERS}");
            let output = self.run(&line).await;
            let complaint = output.stderr.trim();
            let answer = digest(&output.stdout);
            self.terminal.answer(answer.as_deref().unwrap_or(complaint));
            let names = names(&output.stdout);
            let ok = output.success && names == ["web"];
            self.check("kubectl, certificate", "web", listed(&names), ok);
        } else {
            self.terminal
                .plain("\nkubectl is not installed here, so curl stands in for it, with the same certificate:");
            let line = curl(self.proxy_a(), ADMIN, "", AUTOSCALERS);
            self.expect("curl, certificate", &line, 200, &[]).await;
        }
        self.terminal.plain("\nA bearer token:");
        let line = curl(self.proxy_a(), Who::Token("tok-admin"), "", AUTOSCALERS);
        self.expect("curl, bearer token", &line, 200, &[]).await;
        self.terminal
            .plain("\nAlice has a certificate and no rights. B refuses her, and by her name:");
        let line = curl(self.proxy_a(), ALICE, "", AUTOSCALERS);
        let answer = self
            .expect("curl, user without rights", &line, 403, &[])
            .await;
        let named = answer.body.contains(r#"User \"alice\" cannot list"#);
        let seen = if named { "alice" } else { "not alice" };
        self.check("the refusal names her", "alice", seen.to_owned(), named);
    }

    async fn true_not_found(&mut self) {
        self.heading("What nobody serves is still a 404");
        self.terminal
            .prose("It is the apiserver's own, passed on because it is true.");
        let line = curl(
            self.proxy_a(),
            ADMIN,
            "",
            "/apis/nobody.example.com/v1/things",
        );
        self.expect("a group that nobody has", &line, 404, &[])
            .await;
    }

    async fn if_ready(&mut self) {
        self.heading("A restarts: no early 403");
        self.terminal.prose(
            "An apiserver that is starting already answers, and not all of it is true: its RBAC rules may not be loaded yet
             (403), its custom resources not be known (404). A client that sends X-Kubernetes-If-Ready would rather wait.",
        );
        self.stage.a.api_server.kill().await;
        self.stage.wait_until_a_is_initialized(false).await;
        let started = Instant::now();
        self.stage.a.api_server.start_again().await;
        self.terminal
            .aside("apiserver A was killed and started again; it is not ready yet");
        let (path, asks) = ("/api/v1", "-H 'X-Kubernetes-If-Ready: 1'");
        if matches!(self.stage.a.api_server, ApiServer::Double(_)) {
            self.terminal
                .plain("\nStraight to A. Every user may read this document, and yet:");
            let line = curl(self.stage.a.api_server.addr(), ALICE, "", path);
            self.expect("straight to A, starting", &line, 403, &[])
                .await;
        }
        self.terminal.plain("\nThrough A's proxy, with the header:");
        let line = curl(self.proxy_a(), ALICE, asks, path);
        let unready = [("Retry-After", "5"), ("X-Kubernetes-Ready", "false")];
        self.expect("If-Ready, starting", &line, 503, &unready)
            .await;
        self.terminal
            .plain("\nWithout it, nobody notices: what B serves too is served by B for as long as A is not ready:");
        let without = curl(self.proxy_a(), ADMIN, "", "/api/v1/namespaces");
        self.expect("no If-Ready, starting", &without, 200, &[])
            .await;
        self.stage.a.api_server.become_ready().await;
        self.stage.wait_until_a_is_initialized(true).await;
        self.terminal.plain("");
        self.terminal.aside(format_args!(
            "apiserver A is ready now, {:.1} s after it was started",
            started.elapsed().as_secs_f64()
        ));
        let ready = [("X-Kubernetes-Ready", "true")];
        self.expect("If-Ready, ready", &line, 200, &ready).await;
    }

    async fn death(&mut self) {
        self.heading("B dies: unreachable is not gone");
        self.stage.b.proxy.kill();
        self.stage.b.api_server.kill().await;
        self.terminal
            .aside("apiserver B and its proxy were killed (SIGKILL)");
        self.terminal
            .prose("The objects are still in etcd, so \"404\" would be a lie. It is 503, and worth another try:");
        let line = curl(self.proxy_a(), ADMIN, "", AUTOSCALERS);
        let retry = [("Retry-After", "5")];
        self.expect("just after B's death", &line, 503, &retry)
            .await;
        let waited = Instant::now();
        self.stage.wait_until_b_is("live", false).await;
        self.terminal.plain("");
        self.terminal.aside(format_args!(
            "B's key in etcd that says \"alive\" ran out {:.1} s later; here it lives for 3 s, by default 15 s",
            waited.elapsed().as_secs_f64()
        ));
        self.terminal
            .prose("What B served stays known for rerouting.absentServerGrace (by default 1 h), so the answer is the same:");
        self.expect("B's live key is gone", &line, 503, &retry)
            .await;
    }

    async fn return_of_b(&mut self) {
        self.heading("B comes back");
        let waited = Instant::now();
        self.stage.b.api_server.start_again().await;
        self.stage.b.api_server.become_ready().await;
        self.stage.b.proxy.start_again().await;
        self.stage.wait_until_b_is("target", true).await;
        self.terminal.aside(format_args!(
            "both were started again; A's proxy knew of it after {:.1} s",
            waited.elapsed().as_secs_f64()
        ));
        let line = curl(self.proxy_a(), ADMIN, "", AUTOSCALERS);
        self.expect("autoscalers through A's proxy", &line, 200, &[])
            .await;
    }
}
