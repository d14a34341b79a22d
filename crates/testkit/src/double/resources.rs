//! The table of resources, one line each, copied from the discovery of real servers.

use clap::ValueEnum;

/// One resource of one group version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedResource {
    /// "" is the core group.
    pub group: String,
    pub version: String,
    pub resource: String,
    pub kind: String,
    pub namespaced: bool,
    pub verbs: Vec<String>,
    pub subresources: Vec<String>,
    pub short_names: Vec<String>,
    /// From a CRD: not there before the server is ready, as on real ones.
    pub custom: bool,
}

const ALL_VERBS: &str = "create,delete,deletecollection,get,list,patch,update,watch";

impl ServedResource {
    /// A namespaced resource with every verb and a `status`.
    pub fn new(group: &str, version: &str, resource: &str, kind: &str) -> Self {
        Self {
            group: group.to_owned(),
            version: version.to_owned(),
            resource: resource.to_owned(),
            kind: kind.to_owned(),
            namespaced: true,
            verbs: list(ALL_VERBS),
            subresources: list("status"),
            short_names: Vec::new(),
            custom: false,
        }
    }

    /// The same from a CRD.
    pub fn custom(group: &str, version: &str, resource: &str, kind: &str) -> Self {
        Self {
            custom: true,
            ..Self::new(group, version, resource, kind)
        }
    }

    pub fn singular(&self) -> String {
        self.kind.to_lowercase()
    }

    /// `apps/v1`, `v1`.
    pub fn group_version(&self) -> String {
        group_version(&self.group, &self.version)
    }
}

pub fn group_version(group: &str, version: &str) -> String {
    if group.is_empty() {
        version.to_owned()
    } else {
        format!("{group}/{version}")
    }
}

/// The kind and the verbs of a subresource.
pub fn subresource(kind: &str, name: &str) -> (String, Vec<String>) {
    let (kind, verbs) = match name {
        "scale" => ("Scale", "get,patch,update"),
        "eviction" => ("Eviction", "create"),
        "binding" => ("Binding", "create"),
        "token" => ("TokenRequest", "create"),
        "exec" => ("PodExecOptions", "create,get"),
        "attach" => ("PodAttachOptions", "create,get"),
        "portforward" => ("PodPortForwardOptions", "create,get"),
        "proxy" if kind == "Node" => ("NodeProxyOptions", "create,delete,get,patch,update"),
        "proxy" if kind == "Service" => ("ServiceProxyOptions", "create,delete,get,patch,update"),
        "proxy" => ("PodProxyOptions", "create,delete,get,patch,update"),
        "log" => (kind, "get"),
        "finalize" => (kind, "update"),
        _ => (kind, "get,patch,update"),
    };
    (kind.to_owned(), list(verbs))
}

/// A version of Kubernetes: its resources and its formats of discovery.
#[derive(Clone, Debug)]
pub struct Preset {
    pub git_version: String,
    /// `major.minor`, where that is not the binary's.
    pub emulated: Option<String>,
    pub resources: Vec<ServedResource>,
    /// Versions of `apidiscovery.k8s.io` that it answers in; none: legacy discovery only.
    pub aggregated: Vec<String>,
    pub openapi_v3: bool,
    /// Whether `X-Remote-Uid` means something.
    pub uid_header: bool,
}

/// The version that a program's double is, by its flag.
#[derive(Clone, Copy, Default, ValueEnum)]
pub enum Kubernetes {
    #[value(name = "v1.20")]
    V1_20,
    #[default]
    #[value(name = "v1.36")]
    V1_36,
}

impl Kubernetes {
    pub fn preset(self) -> Preset {
        match self {
            Self::V1_20 => v1_20(),
            Self::V1_36 => v1_36(),
        }
    }
}

/// Kubernetes 1.20: no aggregated discovery, no OpenAPI v3.
pub fn v1_20() -> Preset {
    Preset {
        git_version: "v1.20.2".to_owned(),
        emulated: None,
        resources: parse(V1_20),
        aggregated: Vec::new(),
        openapi_v3: false,
        uid_header: false,
    }
}

/// Kubernetes 1.26, the first with aggregated discovery, in its beta form only.
pub fn v1_26() -> Preset {
    Preset {
        git_version: "v1.26.0".to_owned(),
        aggregated: vec!["v2beta1".to_owned()],
        ..v1_36()
    }
}

/// Kubernetes 1.36, which refuses `v2beta1` of aggregated discovery; add it to `aggregated` for a server in between.
pub fn v1_36() -> Preset {
    Preset {
        git_version: "v1.36.0".to_owned(),
        emulated: None,
        resources: parse(V1_36),
        aggregated: vec!["v2".to_owned()],
        openapi_v3: true,
        uid_header: true,
    }
}

impl Preset {
    pub fn without_group(mut self, group: &str) -> Self {
        self.resources.retain(|served| served.group != group);
        self
    }

    /// In all versions of the group.
    pub fn without_resource(mut self, group: &str, resource: &str) -> Self {
        self.resources.retain(|served| {
            (served.group.as_str(), served.resource.as_str()) != (group, resource)
        });
        self
    }

    /// `without_subresource("", "pods", "resize")`.
    pub fn without_subresource(mut self, group: &str, resource: &str, subresource: &str) -> Self {
        for served in &mut self.resources {
            if served.group == group && served.resource == resource {
                served.subresources.retain(|name| name != subresource);
            }
        }
        self
    }

    pub fn with(mut self, resource: ServedResource) -> Self {
        self.resources.push(resource);
        self
    }

    pub fn git_version(mut self, version: &str) -> Self {
        version.clone_into(&mut self.git_version);
        self
    }

    /// As with `--emulated-version`.
    pub fn emulating(mut self, version: &str) -> Self {
        self.emulated = Some(version.to_owned());
        self
    }
}

fn list(names: &str) -> Vec<String> {
    match names {
        "-" => Vec::new(),
        "all" => list(ALL_VERBS),
        names => names.split(',').map(str::to_owned).collect(),
    }
}

/// Lines of: group, versions (preferred first), resource, kind, scope, short names, subresources, verbs.
fn parse(table: &str) -> Vec<ServedResource> {
    let mut resources = Vec::new();
    for line in COMMON
        .lines()
        .chain(table.lines())
        .filter(|line| !line.is_empty())
    {
        let fields: Vec<&str> = line.split(' ').collect();
        let [
            group,
            versions,
            resource,
            kind,
            scope,
            short,
            subresources,
            verbs,
        ] = fields[..]
        else {
            panic!("not a line of the resource table: {line}");
        };
        let group = if group == "core" { "" } else { group };
        for version in versions.split(',') {
            resources.push(ServedResource {
                namespaced: scope == "N",
                verbs: list(verbs),
                subresources: list(subresources),
                short_names: list(short),
                ..ServedResource::new(group, version, resource, kind)
            });
        }
    }
    resources
}

const COMMON: &str = "\
core v1 bindings Binding N - - create
core v1 componentstatuses ComponentStatus C cs - get,list
core v1 configmaps ConfigMap N cm - all
core v1 endpoints Endpoints N ep - all
core v1 events Event N ev - all
core v1 limitranges LimitRange N limits - all
core v1 namespaces Namespace C ns finalize,status all
core v1 nodes Node C no proxy,status all
core v1 persistentvolumeclaims PersistentVolumeClaim N pvc status all
core v1 persistentvolumes PersistentVolume C pv status all
core v1 podtemplates PodTemplate N - - all
core v1 replicationcontrollers ReplicationController N rc scale,status all
core v1 resourcequotas ResourceQuota N quota status all
core v1 secrets Secret N - - all
core v1 serviceaccounts ServiceAccount N sa token all
core v1 services Service N svc proxy,status all
apps v1 controllerrevisions ControllerRevision N - - all
apps v1 daemonsets DaemonSet N ds status all
apps v1 deployments Deployment N deploy scale,status all
apps v1 replicasets ReplicaSet N rs scale,status all
apps v1 statefulsets StatefulSet N sts scale,status all
internal.apiserver.k8s.io v1alpha1 storageversions StorageVersion C - status all
";

const V1_20: &str = "\
core v1 pods Pod N po attach,binding,eviction,exec,log,portforward,proxy,status all
apiregistration.k8s.io v1,v1beta1 apiservices APIService C - status all
events.k8s.io v1,v1beta1 events Event N ev - all
authentication.k8s.io v1,v1beta1 tokenreviews TokenReview C - - create
authorization.k8s.io v1,v1beta1 localsubjectaccessreviews LocalSubjectAccessReview N - - create
authorization.k8s.io v1,v1beta1 selfsubjectaccessreviews SelfSubjectAccessReview C - - create
authorization.k8s.io v1,v1beta1 selfsubjectrulesreviews SelfSubjectRulesReview C - - create
authorization.k8s.io v1,v1beta1 subjectaccessreviews SubjectAccessReview C - - create
autoscaling v1,v2beta1,v2beta2 horizontalpodautoscalers HorizontalPodAutoscaler N hpa status all
batch v1 jobs Job N - status all
batch v1beta1 cronjobs CronJob N cj status all
certificates.k8s.io v1,v1beta1 certificatesigningrequests CertificateSigningRequest C csr approval,status all
networking.k8s.io v1,v1beta1 ingressclasses IngressClass C - - all
networking.k8s.io v1,v1beta1 ingresses Ingress N ing status all
networking.k8s.io v1 networkpolicies NetworkPolicy N netpol - all
extensions v1beta1 ingresses Ingress N ing status all
policy v1beta1 poddisruptionbudgets PodDisruptionBudget N pdb status all
policy v1beta1 podsecuritypolicies PodSecurityPolicy C psp - all
rbac.authorization.k8s.io v1,v1beta1 clusterrolebindings ClusterRoleBinding C - - all
rbac.authorization.k8s.io v1,v1beta1 clusterroles ClusterRole C - - all
rbac.authorization.k8s.io v1,v1beta1 rolebindings RoleBinding N - - all
rbac.authorization.k8s.io v1,v1beta1 roles Role N - - all
storage.k8s.io v1,v1beta1 csidrivers CSIDriver C - - all
storage.k8s.io v1,v1beta1 csinodes CSINode C - - all
storage.k8s.io v1,v1beta1 storageclasses StorageClass C sc - all
storage.k8s.io v1,v1beta1 volumeattachments VolumeAttachment C - status all
admissionregistration.k8s.io v1,v1beta1 mutatingwebhookconfigurations MutatingWebhookConfiguration C - - all
admissionregistration.k8s.io v1,v1beta1 validatingwebhookconfigurations ValidatingWebhookConfiguration C - - all
apiextensions.k8s.io v1,v1beta1 customresourcedefinitions CustomResourceDefinition C crd,crds status all
scheduling.k8s.io v1,v1beta1 priorityclasses PriorityClass C pc - all
coordination.k8s.io v1,v1beta1 leases Lease N - - all
node.k8s.io v1,v1beta1 runtimeclasses RuntimeClass C - - all
discovery.k8s.io v1beta1 endpointslices EndpointSlice N - - all
flowcontrol.apiserver.k8s.io v1beta1 flowschemas FlowSchema C - status all
flowcontrol.apiserver.k8s.io v1beta1 prioritylevelconfigurations PriorityLevelConfiguration C - status all
";

const V1_36: &str = "\
core v1 pods Pod N po attach,binding,ephemeralcontainers,eviction,exec,log,portforward,proxy,resize,status all
apiregistration.k8s.io v1 apiservices APIService C - status all
events.k8s.io v1 events Event N ev - all
authentication.k8s.io v1 selfsubjectreviews SelfSubjectReview C - - create
authentication.k8s.io v1 tokenreviews TokenReview C - - create
authorization.k8s.io v1 localsubjectaccessreviews LocalSubjectAccessReview N - - create
authorization.k8s.io v1 selfsubjectaccessreviews SelfSubjectAccessReview C - - create
authorization.k8s.io v1 selfsubjectrulesreviews SelfSubjectRulesReview C - - create
authorization.k8s.io v1 subjectaccessreviews SubjectAccessReview C - - create
autoscaling v2,v1 horizontalpodautoscalers HorizontalPodAutoscaler N hpa status all
batch v1 cronjobs CronJob N cj status all
batch v1 jobs Job N - status all
certificates.k8s.io v1 certificatesigningrequests CertificateSigningRequest C csr approval,status all
networking.k8s.io v1 ingressclasses IngressClass C - - all
networking.k8s.io v1 ingresses Ingress N ing status all
networking.k8s.io v1 ipaddresses IPAddress C ip - all
networking.k8s.io v1 networkpolicies NetworkPolicy N netpol - all
networking.k8s.io v1 servicecidrs ServiceCIDR C - status all
policy v1 poddisruptionbudgets PodDisruptionBudget N pdb status all
rbac.authorization.k8s.io v1 clusterrolebindings ClusterRoleBinding C - - all
rbac.authorization.k8s.io v1 clusterroles ClusterRole C - - all
rbac.authorization.k8s.io v1 rolebindings RoleBinding N - - all
rbac.authorization.k8s.io v1 roles Role N - - all
storage.k8s.io v1 csidrivers CSIDriver C - - all
storage.k8s.io v1 csinodes CSINode C - - all
storage.k8s.io v1 csistoragecapacities CSIStorageCapacity N - - all
storage.k8s.io v1 storageclasses StorageClass C sc - all
storage.k8s.io v1 volumeattachments VolumeAttachment C - status all
storage.k8s.io v1 volumeattributesclasses VolumeAttributesClass C vac - all
admissionregistration.k8s.io v1 mutatingadmissionpolicies MutatingAdmissionPolicy C - - all
admissionregistration.k8s.io v1 mutatingadmissionpolicybindings MutatingAdmissionPolicyBinding C - - all
admissionregistration.k8s.io v1 mutatingwebhookconfigurations MutatingWebhookConfiguration C - - all
admissionregistration.k8s.io v1 validatingadmissionpolicies ValidatingAdmissionPolicy C - status all
admissionregistration.k8s.io v1 validatingadmissionpolicybindings ValidatingAdmissionPolicyBinding C - - all
admissionregistration.k8s.io v1 validatingwebhookconfigurations ValidatingWebhookConfiguration C - - all
apiextensions.k8s.io v1 customresourcedefinitions CustomResourceDefinition C crd,crds status all
scheduling.k8s.io v1 priorityclasses PriorityClass C pc - all
coordination.k8s.io v1 leases Lease N - - all
node.k8s.io v1 runtimeclasses RuntimeClass C - - all
discovery.k8s.io v1 endpointslices EndpointSlice N - - all
resource.k8s.io v1 deviceclasses DeviceClass C - - all
resource.k8s.io v1 resourceclaims ResourceClaim N - status all
resource.k8s.io v1 resourceclaimtemplates ResourceClaimTemplate N - - all
resource.k8s.io v1 resourceslices ResourceSlice C - - all
flowcontrol.apiserver.k8s.io v1 flowschemas FlowSchema C - status all
flowcontrol.apiserver.k8s.io v1 prioritylevelconfigurations PriorityLevelConfiguration C - status all
";
