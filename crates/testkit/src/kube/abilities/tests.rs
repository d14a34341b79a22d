use super::{Abilities, Need, Plan, Wanted, flag, gate};

const HELP_1_20: &str = "
Generic flags:

      --advertise-address ip                         The IP address on which to advertise the apiserver
                                                     --bind-address will be used.
      --feature-gates mapStringBool                  A set of key=value pairs. Options are:
                                                     APIListChunking=true|false (BETA - default=true)
                                                     APIServerIdentity=true|false (ALPHA - default=false)
                                                     StorageVersionAPI=true|false (ALPHA - default=false)
      --insecure-port int                            DEPRECATED
      --service-cluster-ip-range string              A CIDR notation IP range
  -v, --v Level                                      number for the log level verbosity
";
const HELP_1_36: &str = "
      --advertise-address ip
                The IP address on which to advertise the apiserver
      --emulated-version strings
                Options are: kube=1.33..1.36(default:1.36)
      --feature-gates colonSeparatedMultimapStringString
                kube:APIServerIdentity=true|false (BETA - default=true)
                kube:StorageVersionAPI=true|false (ALPHA - default=false)
                kube:UnknownVersionInteroperabilityProxy=true|false (BETA - default=true)
      --requestheader-uid-headers strings
                List of request headers to inspect for UIDs.
      --service-cluster-ip-range string
";

fn raw(version: &str, go: &str) -> String {
    format!(
        "version.Info{{Major:\"1\", Minor:\"x\", GitVersion:\"{version}\", GitCommit:\"unknown\", GoVersion:\"{go}\"}}"
    )
}

fn old() -> Abilities {
    Abilities::new(&raw("v1.20.2", "go1.19.8"), HELP_1_20).unwrap()
}

fn new() -> Abilities {
    Abilities::new(
        &raw("v1.36.0-rc.1+x", "go1.26rc1 X:boringcrypto"),
        HELP_1_36,
    )
    .unwrap()
}

fn strings<const N: usize>(list: [&str; N]) -> Vec<String> {
    list.map(str::to_owned).to_vec()
}

#[test]
fn help_names_flags_and_gates() {
    assert_eq!(flag("      --bind-address ip   text"), Some("bind-address"));
    assert_eq!(flag("  -h, --help    text"), Some("help"));
    assert_eq!(flag("              --bind-address will be used"), None);
    assert_eq!(flag("Generic flags:"), None);
    let found = gate("          kube:AllBeta=true|false (BETA - default=false)");
    assert_eq!(found, Some(("AllBeta".to_owned(), false)));
    assert_eq!(gate("--feature-gates mapStringBool"), None);
}

#[test]
fn only_a_complete_kube_apiserver_counts() {
    let refused = |raw: &str, help| Abilities::new(raw, help).unwrap_err();
    assert!(refused(&raw("v1.19.9", "go1.15"), HELP_1_20).contains("older"));
    let other = HELP_1_36.replace("service-cluster-ip-range", "other");
    assert!(refused(&raw("v1.36.4", "go1.26"), &other).contains("not a complete"));
    assert!(refused("sh: not found", HELP_1_20).contains("no version"));
    assert!(refused(&raw("banana", "go1.26"), HELP_1_20).contains("banana"));
}

#[test]
fn a_need_is_met_by_some_versions() {
    for (need, in_old, in_new) in [
        (Need::Flag("insecure-port"), true, false),
        (Need::Flag("emulated-version"), false, true),
        (Need::Flag("bind-address"), false, false),
        (Need::Gate("APIServerIdentity"), true, true),
        (
            Need::Gate("UnknownVersionInteroperabilityProxy"),
            false,
            true,
        ),
        (Need::On("APIServerIdentity"), false, true),
        (Need::Serves("autoscaling/v1"), true, true),
        (Need::Serves("autoscaling/v2"), false, true),
        (Need::Serves("batch/v1beta1"), true, false),
        (Need::Before(26), true, false),
        (Need::Since(36), false, true),
        (Need::GoBefore(20), true, false),
    ] {
        assert_eq!(
            (old().meets(need), new().meets(need)),
            (in_old, in_new),
            "{need:?}"
        );
    }
}

#[test]
fn some_needs_depend_on_the_others() {
    let hpas = Need::Reads("horizontalpodautoscalers");
    let both = [old(), new()];
    assert!(!old().meets_beside(hpas, both.iter()));
    assert!(new().meets_beside(hpas, both.iter()));
    assert!(old().meets_beside(hpas, both[..1].iter()));
    assert!(old().meets_beside(Need::Reads("configmaps"), both.iter()));
    assert!(!old().meets_beside(Need::Since(36), both.iter()));
    assert!(!new().meets_beside(Need::OneVersion, both.iter()));
    assert!(new().meets_beside(Need::OneVersion, both[1..].iter()));
}

#[test]
fn flags_are_given_as_each_version_knows_them() {
    let wanted = Wanted {
        flags: strings(["--advertise-address=127.0.0.1"]),
        optional: strings(["--requestheader-uid-headers=X-Remote-Uid"]),
        runtime_config: strings([
            "autoscaling/v1=false,autoscaling/v2=false",
            "autoscaling/v2beta2=false",
        ]),
        gates: strings(["APIServerIdentity=true", "StorageVersionAPI=true"]),
    };
    let gates = "--feature-gates=APIServerIdentity=true,StorageVersionAPI=true";
    let of_old = strings([
        "--advertise-address=127.0.0.1",
        "--runtime-config=autoscaling/v1=false,autoscaling/v2beta2=false",
        gates,
    ]);
    let of_new = strings([
        "--advertise-address=127.0.0.1",
        "--requestheader-uid-headers=X-Remote-Uid",
        "--runtime-config=autoscaling/v1=false,autoscaling/v2=false",
        &format!("{gates},UnknownVersionInteroperabilityProxy=false"),
    ]);
    for (abilities, flags) in [(old(), of_old), (new(), of_new)] {
        let lacking = Vec::new();
        assert_eq!(abilities.plan(&wanted), Plan { flags, lacking });
    }
}

#[test]
fn a_group_has_other_versions_in_other_versions() {
    assert_eq!(
        old().versions_of("autoscaling"),
        ["v1", "v2beta1", "v2beta2"]
    );
    assert_eq!(new().versions_of("autoscaling"), ["v1", "v2"]);
    assert_eq!(new().versions_of("batch"), ["v1"]);
}

#[test]
fn what_a_version_cannot_do_is_named() {
    let wanted = Wanted {
        flags: strings(["--insecure-port=0", "--emulated-version=1.35"]),
        runtime_config: strings(["batch/v1beta1=true", "autoscaling/v2=true"]),
        gates: strings([
            "UnknownVersionInteroperabilityProxy=true",
            "SomethingElse=true",
        ]),
        ..Wanted::default()
    };
    let lacking = |abilities: Abilities| abilities.plan(&wanted).lacking;
    assert_eq!(
        lacking(old()),
        [
            "--emulated-version=1.35",
            "autoscaling/v2=true",
            "UnknownVersionInteroperabilityProxy=true",
            "SomethingElse=true"
        ]
    );
    assert_eq!(
        lacking(new()),
        [
            "--insecure-port=0",
            "batch/v1beta1=true",
            "SomethingElse=true"
        ]
    );
}

#[test]
fn a_gate_that_is_no_longer_listed_is_on_for_good() {
    let help = HELP_1_36.replace(
        "kube:APIServerIdentity=true|false (BETA - default=true)",
        "",
    );
    let later = Abilities::new(&raw("v1.38.0", "go1.28"), &help).unwrap();
    let plan = |gate: &str| {
        let gates = strings([gate]);
        later
            .plan(&Wanted {
                gates,
                ..Wanted::default()
            })
            .lacking
    };
    assert_eq!(plan("APIServerIdentity=true"), strings([]));
    assert_eq!(plan("APIServerIdentity=false"), ["APIServerIdentity=false"]);
    assert_eq!(plan("NeverHeardOf=false"), strings([]));
}

#[test]
fn a_flag_whose_gate_is_off_is_not_given() {
    let gate = "kube:RemoteRequestHeaderUID=true|false (ALPHA - default=false)";
    let help = format!("{HELP_1_36}\n                {gate}\n");
    let alpha = Abilities::new(&raw("v1.32.0", "go1.23"), &help).unwrap();
    let optional = strings(["--requestheader-uid-headers=X-Remote-Uid"]);
    let plan = alpha.plan(&Wanted {
        optional,
        ..Wanted::default()
    });
    assert_eq!(
        plan.flags,
        ["--feature-gates=UnknownVersionInteroperabilityProxy=false"]
    );
}
