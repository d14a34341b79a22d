//! Nodes as people have them.

use crate::install::Layout;

#[derive(Clone)]
pub(super) struct Case {
    pub(super) name: &'static str,
    /// `kubeadm-VERSION`, or a file of `tests/data/install/manifests`.
    pub(super) manifest: &'static str,
    pub(super) addresses: &'static [(&'static str, &'static str)],
    pub(super) others: &'static [(&'static str, &'static str)],
    pub(super) endpoint: Option<(&'static str, u16)>,
    pub(super) servers: usize,
    pub(super) layout: Option<Layout>,
    pub(super) virtual_ips: &'static [&'static str],
    pub(super) config: Option<&'static str>,
    /// In the serving certificate.
    pub(super) names: &'static [&'static str],
}

const OWN: &[(&str, &str)] = &[
    ("lo", "127.0.0.1"),
    ("eth0", "10.0.0.11"),
    ("eth0", "fe80::11"),
    ("cni0", "10.244.0.1"),
    ("kube-ipvs0", "10.96.0.1"),
];

const PLAIN: Case = Case {
    name: "",
    manifest: "kubeadm-v1.36",
    addresses: OWN,
    others: &[],
    endpoint: None,
    servers: 1,
    layout: None,
    virtual_ips: &[],
    config: None,
    names: &["cp-1", "kubernetes", "kubernetes.default.svc"],
};

/// A manifest of that name on a plain node.
const fn of(name: &'static str) -> Case {
    Case {
        name,
        manifest: name,
        ..PLAIN
    }
}

const KUBE_VIP: &str = "apiVersion: v1
kind: Pod
metadata: {name: kube-vip, namespace: kube-system}
spec:
  containers:
    - name: kube-vip
      image: ghcr.io/kube-vip/kube-vip:v0.8.0
      args: [manager]
      env:
        - {name: vip_arp, value: \"true\"}
        - {name: port, value: \"6443\"}
        - {name: address, value: 10.0.0.100}
  hostAliases: [{hostnames: [kubernetes], ip: 127.0.0.1}]
  hostNetwork: true
";
const KEEPALIVED: &str = "vrrp_script check_apiserver {
  script \"/etc/keepalived/check_apiserver.sh\"
}
vrrp_instance VI_1 {
    virtual_ipaddress {
        10.0.0.100/24 dev eth0
        2001:db8::100/64
    }
}
";
const CHECK: &str = "#!/bin/sh
curl -sfk --max-time 2 https://localhost:6443/healthz -o /dev/null || exit 1
";
const HAND_POD: &str = include_str!("../../../deploy/kubeadm/kube-interop-proxy.yaml");
const HAND_CONFIG: &str = include_str!("../../../deploy/kubeadm/proxy.yaml");

pub(super) const CASES: &[Case] = &[
    of("kubeadm-v1.36"),
    of("kubeadm-v1.20"),
    of("kubeadm-v1.24"),
    of("kubeadm-v1.28"),
    of("kubeadm-v1.31"),
    Case {
        name: "sidecar",
        layout: Some(Layout::Sidecar),
        ..PLAIN
    },
    Case {
        name: "native-sidecar",
        layout: Some(Layout::NativeSidecar),
        ..PLAIN
    },
    Case {
        name: "native-sidecar-too-old",
        manifest: "kubeadm-v1.28",
        layout: Some(Layout::NativeSidecar),
        ..PLAIN
    },
    Case {
        name: "three-nodes",
        servers: 3,
        ..PLAIN
    },
    of("external-etcd"),
    of("etcd-prefix-and-overrides"),
    Case {
        addresses: &[
            ("eth0", "10.0.0.11"),
            ("eth0", "2001:db8::11"),
            ("eth1", "192.168.7.1"),
            ("cilium_host", "10.1.0.1"),
        ],
        ..of("dual-stack")
    },
    Case {
        addresses: &[("eth0", "2001:db8::11")],
        ..of("ipv6-only")
    },
    of("bind-address-set"),
    Case {
        addresses: &[("eth0", "10.0.0.11"), ("eth1", "10.9.0.11")],
        ..of("bind-another-address")
    },
    of("on-loopback-already"),
    Case {
        servers: 3,
        ..of("extra-args")
    },
    of("cipher-suites"),
    of("old-tls-and-suites"),
    of("sni"),
    of("requestheader-names"),
    of("requestheader-anybody"),
    of("no-requestheader"),
    of("no-proxy-client"),
    of("no-certificate"),
    of("no-advertise-address"),
    Case {
        name: "no-advertise-address-and-two",
        manifest: "no-advertise-address",
        addresses: &[("eth0", "10.0.0.11"), ("eth1", "10.9.0.11")],
        ..PLAIN
    },
    Case {
        name: "kube-vip",
        others: &[("/etc/kubernetes/manifests/kube-vip.yaml", KUBE_VIP)],
        endpoint: Some(("10.0.0.100", 6443)),
        servers: 3,
        ..PLAIN
    },
    Case {
        name: "keepalived",
        others: &[
            ("/etc/keepalived/keepalived.conf", KEEPALIVED),
            ("/etc/keepalived/check_apiserver.sh", CHECK),
        ],
        servers: 3,
        ..PLAIN
    },
    Case {
        name: "endpoint-is-an-address",
        endpoint: Some(("10.0.0.50", 6443)),
        ..PLAIN
    },
    Case {
        name: "endpoint-has-another-port",
        endpoint: Some(("10.0.0.50", 8443)),
        ..PLAIN
    },
    Case {
        name: "endpoint-is-a-name",
        endpoint: Some(("api.blue.example", 6443)),
        ..PLAIN
    },
    Case {
        name: "virtual-ip-given",
        endpoint: Some(("api.blue.example", 6443)),
        virtual_ips: &["10.0.0.100"],
        ..PLAIN
    },
    of("kops"),
    Case {
        servers: 3,
        ..of("kubespray")
    },
    of("two-arguments"),
    of("quoted"),
    of("unknown-keys"),
    of("windows-line-ends"),
    of("comments-and-anchors"),
    of("two-containers"),
    of("another-container-first"),
    Case {
        name: "another-container-first-and-sidecar",
        manifest: "another-container-first",
        layout: Some(Layout::Sidecar),
        ..PLAIN
    },
    of("args-already"),
    Case {
        name: "args-already-and-sidecar",
        manifest: "args-already",
        layout: Some(Layout::Sidecar),
        ..PLAIN
    },
    of("no-probes"),
    of("tcp-probes"),
    of("exec-probe"),
    of("hand-written"),
    of("volumes-elsewhere"),
    of("file-not-mounted"),
    of("certificate-in-configmap"),
    of("pod-network"),
    of("shell"),
    of("environment"),
    of("port-443"),
    of("etcd-http-elsewhere"),
    of("etcd-http-here"),
    of("etcd-unix-socket"),
    of("another-nodes"),
    of("not-a-pod"),
    of("another-pod"),
    of("two-documents"),
    of("not-yaml"),
    of("empty"),
    of("key-twice"),
    of("json"),
    Case {
        config: Some(HAND_CONFIG),
        ..of("hand-second-container")
    },
    Case {
        config: Some(HAND_CONFIG),
        ..of("hand-native-sidecar")
    },
    Case {
        config: Some(HAND_CONFIG),
        others: &[(
            "/etc/kubernetes/manifests/kube-interop-proxy.yaml",
            HAND_POD,
        )],
        ..of("hand-own-pod")
    },
    Case {
        name: "hand-second-container-to-own-pod",
        manifest: "hand-second-container",
        config: Some(HAND_CONFIG),
        layout: Some(Layout::OwnPod),
        ..PLAIN
    },
    Case {
        name: "own-cluster-domain",
        names: &["cp-1", "kubernetes.default.svc.blue.local"],
        ..PLAIN
    },
    Case {
        name: "certificate-without-the-name",
        names: &["cp-1"],
        ..PLAIN
    },
    Case {
        name: "configuration-damaged",
        config: Some("serving: ["),
        ..PLAIN
    },
    Case {
        name: "configuration-of-an-operator",
        config: Some(
            "# mine\napiVersion: kube-interop-proxy/v1alpha1\nkind: ProxyConfiguration\nserving: {additionalBindAddresses: ['10.0.0.200:6443'], cipherSuites: [TLS_AES_128_GCM_SHA256]}\nadmin: {bindAddress: 127.0.0.1:7777}\n",
        ),
        ..PLAIN
    },
    Case {
        name: "configuration-of-another-address",
        config: Some(
            "apiVersion: kube-interop-proxy/v1alpha1\nkind: ProxyConfiguration\nserving: {bindAddress: '10.0.0.12:6443', additionalBindAddresses: ['10.0.0.11:6443']}\n",
        ),
        ..PLAIN
    },
];
