// A small apiserver of today's machinery, k8s.io/apiserver as it is: TLS, HTTP/2, authentication, priority and
// fairness, audit, storage in etcd and shutdown are those of kube-apiserver. What kube-apiserver adds is left out, but for
// what its clients and proxies need: ConfigMaps, among them the one that tells the --requestheader-… flags, a file of
// tokens or another apiserver that knows them, and a few rules in place of RBAC. The flags have the names that they have
// in kube-apiserver and in other programs on k8s.io/apiserver.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/anonymous"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	"k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/authentication/request/websocket"
	"k8s.io/apiserver/pkg/authentication/request/x509"
	"k8s.io/apiserver/pkg/authentication/token/tokenfile"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/storage/names"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	utilflowcontrol "k8s.io/apiserver/pkg/util/flowcontrol"
	"k8s.io/apiserver/pkg/util/notfoundhandler"
	"k8s.io/apiserver/plugin/pkg/authenticator/token/webhook"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/component-base/version"
	openapicommon "k8s.io/kube-openapi/pkg/common"
	openapiutil "k8s.io/kube-openapi/pkg/util"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

var (
	scheme  = runtime.NewScheme()
	codecs  = serializer.NewCodecFactory(scheme)
	v1      = corev1.SchemeGroupVersion
	plural  = schema.GroupResource{Resource: "configmaps"}
	single  = schema.GroupResource{Resource: "configmap"}
	granted = "default"
)

func init() {
	must(corev1.AddToScheme(scheme))
	// The type that is stored is the one that is served: there is nothing to convert.
	internal := schema.GroupVersion{Version: runtime.APIVersionInternal}
	scheme.AddKnownTypes(internal, &corev1.ConfigMap{}, &corev1.ConfigMapList{})
	must(scheme.SetVersionPriority(v1))
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "modern-apiserver:", err)
		os.Exit(1)
	}
}

type flags struct {
	run           *options.ServerRunOptions
	serving       *options.SecureServingOptions
	etcd          *options.EtcdOptions
	audit         *options.AuditOptions
	clientCert    options.ClientCertAuthenticationOptions
	requestHeader options.RequestHeaderAuthenticationOptions
	tokens        string
	delegate      string
	fairness      bool
	version       bool
}

func parse() flags {
	backend := storagebackend.NewDefaultConfig("/registry", codecs.LegacyCodec(v1))
	f := flags{
		run:     options.NewServerRunOptions(),
		serving: options.NewSecureServingOptions(),
		etcd:    options.NewEtcdOptions(backend),
		audit:   options.NewAuditOptions(),
	}
	set := pflag.NewFlagSet("modern-apiserver", pflag.ExitOnError)
	f.run.AddUniversalFlags(set)
	f.serving.AddFlags(set)
	f.etcd.AddFlags(set)
	f.audit.AddFlags(set)
	f.clientCert.AddFlags(set)
	f.requestHeader.AddFlags(set)
	set.StringVar(&f.tokens, "token-auth-file", "", "file of tokens, as kube-apiserver's")
	set.StringVar(&f.delegate, "authentication-kubeconfig", "", "of an apiserver that reviews tokens, in place of the file")
	set.BoolVar(&f.fairness, "enable-priority-and-fairness", true, "as kube-apiserver's, with its suggested configuration")
	set.BoolVar(&f.version, "version", false, "print the version")
	must(set.Parse(os.Args[1:]))
	return f
}

func main() {
	f := parse()
	if f.version {
		fmt.Println("Kubernetes", version.Get().GitVersion)
		return
	}
	must(run(f, server.SetupSignalContext()))
}

func run(f flags, ctx context.Context) error {
	if err := f.run.Complete(); err != nil {
		return err
	}
	config := server.NewConfig(codecs)
	config.SkipOpenAPIInstallation = true
	config.OpenAPIV3Config = server.DefaultOpenAPIV3Config(definitions, openapinamer.NewDefinitionNamer(scheme))
	steps := []func() error{
		func() error { return f.run.ApplyTo(config) },
		func() error { return f.etcd.ApplyTo(config) },
		func() error { return f.serving.WithLoopback().ApplyToConfig(config) },
		func() error { return f.audit.ApplyTo(config) },
		func() error { return authentication(f, config) },
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	config.Authorization.Authorizer = authorizer.AuthorizerFunc(authorize)
	suggested := fairness()
	factory := informers.NewSharedInformerFactory(suggested, 0)
	if f.fairness {
		limit := config.MaxRequestsInFlight + config.MaxMutatingRequestsInFlight
		config.FlowControl = utilflowcontrol.New(factory, suggested.FlowcontrolV1(), limit)
	}
	// An unknown path is told so in kube-apiserver's words.
	complete := func(context.Context) bool { return true }
	unknown := server.NewEmptyDelegateWithCustomHandler(notfoundhandler.New(codecs, complete))
	apiserver, err := config.Complete(factory).New("modern-apiserver", unknown)
	if err != nil {
		return err
	}
	if err := install(apiserver, config.RESTOptionsGetter); err != nil {
		return err
	}
	apiserver.AddPostStartHookOrDie("start-cluster-authentication-info-controller", publisher(f))
	return apiserver.PrepareRun().RunWithContext(ctx)
}

// Those of Kubernetes' types are made for kube-apiserver alone. Server-side apply asks for one: an object of any fields.
func definitions(openapicommon.ReferenceCallback) map[string]openapicommon.OpenAPIDefinition {
	var object openapicommon.OpenAPIDefinition
	object.Schema.Type = spec.StringOrArray{"object"}
	object.Schema.AddExtension("x-kubernetes-preserve-unknown-fields", true)
	return map[string]openapicommon.OpenAPIDefinition{openapiutil.GetCanonicalTypeName(&corev1.ConfigMap{}): object}
}

// In kube-apiserver's order (pkg/kubeapiserver/authenticator): front proxy, certificate, token, nobody.
func authentication(f flags, config *server.Config) error {
	info := &config.Authentication
	front, err := f.requestHeader.ToAuthenticationRequestHeaderConfig()
	if err != nil {
		return err
	}
	users, err := f.clientCert.GetClientCAContentProvider()
	if err != nil {
		return err
	}
	tokens, err := tokens(f)
	if err != nil {
		return err
	}
	info.RequestHeaderConfig = front
	for _, err := range []error{
		info.ApplyClientCert(users, config.SecureServing),
		info.ApplyClientCert(front.CAContentProvider, config.SecureServing),
	} {
		if err != nil {
			return err
		}
	}
	known := union.New(
		headerrequest.NewDynamicVerifyOptionsSecure(
			front.CAContentProvider.VerifyOptions, front.AllowedClientNames, front.UsernameHeaders, front.UIDHeaders,
			front.GroupHeaders, front.ExtraHeaderPrefixes),
		x509.NewDynamic(users.VerifyOptions, x509.CommonNameUserConversion),
		bearertoken.New(tokens),
		websocket.NewProtocolAuthenticator(tokens),
	)
	info.Authenticator = union.NewFailOnError(group.NewAuthenticatedGroupAdder(known), anonymous.NewAuthenticator(nil))
	return nil
}

func tokens(f flags) (authenticator.Token, error) {
	if f.delegate == "" {
		return tokenfile.NewCSV(f.tokens)
	}
	config, err := clientcmd.BuildConfigFromFlags("", f.delegate)
	if err != nil {
		return nil, err
	}
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	metrics := webhook.AuthenticatorMetrics{
		RecordRequestTotal:   authenticatorfactory.RecordRequestTotal,
		RecordRequestLatency: authenticatorfactory.RecordRequestLatency,
	}
	backoff := *options.DefaultAuthWebhookRetryBackoff()
	return webhook.NewFromInterface(clients.AuthenticationV1(), nil, backoff, 10*time.Second, metrics)
}

// As the roles that RBAC bootstraps, and everybody who is known may use what is in the namespace `default`.
func authorize(_ context.Context, asked authorizer.Attributes) (authorizer.Decision, string, error) {
	path := asked.GetPath()
	allowed := false
	for _, group := range asked.GetUser().GetGroups() {
		switch group {
		case user.SystemPrivilegedGroup:
			allowed = true
		case user.AllAuthenticated:
			allowed = allowed || asked.IsResourceRequest() && asked.GetNamespace() == granted ||
				!asked.IsResourceRequest() && below(path, "/api", "/apis", "/openapi")
		}
	}
	if !asked.IsResourceRequest() && below(path, "/healthz", "/livez", "/readyz", "/version") {
		allowed = true
	}
	if allowed {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

func below(path string, roots ...string) bool {
	for _, root := range roots {
		if path == root || strings.HasPrefix(path, root+"/") {
			return true
		}
	}
	return false
}

// The objects of priority and fairness that kube-apiserver suggests, as if they had been read from it.
func fairness() kubernetes.Interface {
	var objects []runtime.Object
	for _, level := range append(bootstrap.MandatoryPriorityLevelConfigurations, bootstrap.SuggestedPriorityLevelConfigurations...) {
		objects = append(objects, level.DeepCopy())
	}
	for _, flow := range append(bootstrap.MandatoryFlowSchemas, bootstrap.SuggestedFlowSchemas...) {
		objects = append(objects, flow.DeepCopy())
	}
	return fake.NewSimpleClientset(objects...)
}

func install(apiserver *server.GenericAPIServer, options generic.RESTOptionsGetter) error {
	strategy := strategy{scheme, names.SimpleNameGenerator}
	store := &genericregistry.Store{
		NewFunc:                   func() runtime.Object { return &corev1.ConfigMap{} },
		NewListFunc:               func() runtime.Object { return &corev1.ConfigMapList{} },
		DefaultQualifiedResource:  plural,
		SingularQualifiedResource: single,
		CreateStrategy:            strategy,
		UpdateStrategy:            strategy,
		DeleteStrategy:            strategy,
		TableConvertor:            rest.NewDefaultTableConvertor(plural),
	}
	if err := store.CompleteWithOptions(&generic.StoreOptions{RESTOptions: options}); err != nil {
		return err
	}
	core := server.NewDefaultAPIGroupInfo("", scheme, runtime.NewParameterCodec(scheme), codecs)
	core.VersionedResourcesStorageMap[v1.Version] = map[string]rest.Storage{plural.Resource: store}
	return apiserver.InstallLegacyAPIGroup(server.DefaultLegacyAPIPrefix, &core)
}

type strategy struct {
	runtime.ObjectTyper
	names.NameGenerator
}

func (strategy) NamespaceScoped() bool                                            { return true }
func (strategy) AllowCreateOnUpdate() bool                                        { return false }
func (strategy) AllowUnconditionalUpdate() bool                                   { return true }
func (strategy) Canonicalize(runtime.Object)                                      {}
func (strategy) PrepareForCreate(context.Context, runtime.Object)                 {}
func (strategy) PrepareForUpdate(context.Context, runtime.Object, runtime.Object) {}
func (strategy) Validate(context.Context, runtime.Object) field.ErrorList         { return nil }
func (strategy) ValidateUpdate(context.Context, runtime.Object, runtime.Object) field.ErrorList {
	return nil
}
func (strategy) WarningsOnCreate(context.Context, runtime.Object) []string { return nil }
func (strategy) WarningsOnUpdate(context.Context, runtime.Object, runtime.Object) []string {
	return nil
}

// Tells the --requestheader-… flags as kube-apiserver does, in kube-system/extension-apiserver-authentication.
func publisher(f flags) server.PostStartHookFunc {
	return func(hook server.PostStartHookContext) error {
		data := map[string]string{}
		for key, file := range map[string]string{
			"client-ca-file":               f.clientCert.ClientCA,
			"requestheader-client-ca-file": f.requestHeader.ClientCAFile,
		} {
			text, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			data[key] = string(text)
		}
		for key, values := range map[string][]string{
			"requestheader-allowed-names":        f.requestHeader.AllowedNames,
			"requestheader-username-headers":     f.requestHeader.UsernameHeaders,
			"requestheader-uid-headers":          f.requestHeader.UIDHeaders,
			"requestheader-group-headers":        f.requestHeader.GroupHeaders,
			"requestheader-extra-headers-prefix": f.requestHeader.ExtraHeaderPrefixes,
		} {
			text, err := json.Marshal(append([]string{}, values...))
			if err != nil {
				return err
			}
			data[key] = string(text)
		}
		clients, err := kubernetes.NewForConfig(hook.LoopbackClientConfig)
		if err != nil {
			return err
		}
		maps := clients.CoreV1().ConfigMaps("kube-system")
		told := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "extension-apiserver-authentication"}, Data: data}
		if _, err = maps.Update(hook, told, metav1.UpdateOptions{}); err != nil {
			_, err = maps.Create(hook, told, metav1.CreateOptions{})
		}
		return err
	}
}
