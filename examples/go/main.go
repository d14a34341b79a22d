// Lists ConfigMaps at a server that may only be starting. client-go repeats requests by itself; it only has to ask.
//
//	go run . KUBECONFIG
package main

import (
	"context"
	"fmt"
	"net/http"
	"os"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

type ifReady struct{ next http.RoundTripper }

func (t ifReady) RoundTrip(request *http.Request) (*http.Response, error) {
	request = request.Clone(request.Context())
	request.Header.Set("X-Kubernetes-If-Ready", "true")
	return t.next.RoundTrip(request)
}

func client(config *rest.Config) (*kubernetes.Clientset, error) {
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return ifReady{next} })
	return kubernetes.NewForConfig(config)
}

func main() {
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(kubeconfig string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	clientset, err := client(config)
	if err != nil {
		return err
	}
	list, err := clientset.CoreV1().ConfigMaps("default").List(context.Background(), metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, found := range list.Items {
		fmt.Println(found.Name)
	}
	return nil
}
