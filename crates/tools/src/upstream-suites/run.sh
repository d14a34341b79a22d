# Runs tests of Kubernetes' test/cmd against an apiserver. `bash run.sh TEST …`, in a directory like the root of
# Kubernetes' source, with these variables:
#
#   KUBECTL_DIR      directory of the kubectl to test
#   SECURE_API_PORT  the apiserver's port at 127.0.0.1; the token `admin-token` is an administrator's
#   HOME, TMPDIR, KUBE_TEMP, KUBE_JUNIT_REPORT_DIR   directories of this run; apiserver.crt is in TMPDIR
# shellcheck shell=bash disable=SC1091  # what is sourced is Kubernetes'
set -o errexit -o nounset -o pipefail

export KUBE_ROOT=$PWD TERM=${TERM:-dumb}
. hack/lib/init.sh
export KUBE_OUTPUT_HOSTBIN=$KUBECTL_DIR
. hack/lib/test.sh
. test/cmd/legacy-script.sh
kube::util::ensure-gnu-sed

# As in `setup` of that script, without what it builds and starts.
export CONTEXT=test
kubectl config set-credentials test-admin --token admin-token
kubectl config set-cluster local --insecure-skip-tls-verify --server "https://127.0.0.1:$SECURE_API_PORT"
kubectl config set-context "$CONTEXT" --user test-admin --cluster local
kubectl config use-context "$CONTEXT"

# There is no kubelet; some tests need a node all the same.
kubectl get node 127.0.0.1 || kubectl create -f - <<NODE
{"kind": "Node", "apiVersion": "v1", "metadata": {"name": "127.0.0.1"}, "status": {"capacity": {"memory": "1Gi"}}}
NODE

export SUPPORTED_RESOURCES=('*') WHAT=$*
runTests
