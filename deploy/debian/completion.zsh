#compdef kube-interop-proxy

autoload -U is-at-least

_kube-interop-proxy() {
    typeset -A opt_args
    typeset -a _arguments_options
    local ret=1

    if is-at-least 5.2; then
        _arguments_options=(-s -S -C)
    else
        _arguments_options=(-s -C)
    fi

    local context curcontext="$curcontext" state line
    _arguments "${_arguments_options[@]}" : \
'-h[Print help]' \
'--help[Print help]' \
'-V[Print version]' \
'--version[Print version]' \
":: :_kube-interop-proxy_commands" \
"*::: :->kube-interop-proxy" \
&& ret=0
    case $state in
    (kube-interop-proxy)
        words=($line[1] "${words[@]}")
        (( CURRENT += 1 ))
        curcontext="${curcontext%:*:*}:kube-interop-proxy-command-$line[1]:"
        case $line[1] in
            (run)
_arguments "${_arguments_options[@]}" : \
'--config=[Configuration file (YAML)]:FILE:_files' \
'--log-format=[Form of the log lines on stderr. What is logged is chosen with logging.filter in the configuration, or with RUST_LOG; access lines have the target \`access\`]:LOG_FORMAT:(text json)' \
'-h[Print help]' \
'--help[Print help]' \
&& ret=0
;;
(check)
_arguments "${_arguments_options[@]}" : \
'--config=[Configuration file (YAML)]:FILE:_files' \
'-o+[What to print]:OUTPUT:((text\:"Each finding with what to do"
short\:"Warnings and problems, one short line each"
json\:"One JSON document"))' \
'--output=[What to print]:OUTPUT:((text\:"Each finding with what to do"
short\:"Warnings and problems, one short line each"
json\:"One JSON document"))' \
'--live[Also check what the file names\: etcd, the kube-apiserver, peers, certificates, clocks. One line each with what to do; exit 1 if there is any problem. Changes nothing]' \
'(--live --config)--pre[Check a kubeadm node before the proxy is installed\: what \`install kubeadm\` makes of kube-apiserver'\''s manifest, what it names, kubelet, the container runtime, and what uses the ports. Changes nothing, and reads no configuration file]' \
'-h[Print help (see more with '\''--help'\'')]' \
'--help[Print help (see more with '\''--help'\'')]' \
&& ret=0
;;
(status)
_arguments "${_arguments_options[@]}" : \
'--admin=[Its admin port (admin.bindAddress)]:HOST:PORT:_default' \
'-o+[What to show]:OUTPUT:(table json)' \
'--output=[What to show]:OUTPUT:(table json)' \
'--peers=[How many other servers there must be, at least; by default all that are known]:N:_default' \
'--timeout=[How long to wait before exiting with 1]:DURATION:_default' \
'(-o --output)--wait[Show nothing, but wait until this server and --peers others serve, everything is known of them, and nothing has to be refused\: then the next node may be stopped]' \
'-h[Print help]' \
'--help[Print help]' \
&& ret=0
;;
(forget)
_arguments "${_arguments_options[@]}" : \
'--config=[Configuration file (YAML) of any proxy of the cluster; what it says of etcd is used]:FILE:_files' \
'--yes[Do not ask]' \
'-h[Print help]' \
'--help[Print help]' \
':server_id -- Its server ID, as `status` shows it:_default' \
&& ret=0
;;
(install)
_arguments "${_arguments_options[@]}" : \
'--layout=[How the proxy runs. By default as it does now, or as a pod of its own]:LAYOUT:((own-pod\:"A static pod of its own\: an upgrade of the apiserver does not stop it"
sidecar\:"A second container of the apiserver'\''s pod"
native-sidecar\:"A native sidecar of the apiserver'\''s pod; kubelet must be 1.29 or later"))' \
'--image=[Image of the proxy. By default the one that it has now; at first, and with --image-archive, that of this version]:IMAGE:_default' \
'*--virtual-ip=[A virtual IP that this node may get, if neither kube-vip'\''s nor keepalived'\''s files nor kubeconfigs name it. Can be given several times]:ADDRESS:_default' \
'--image-archive=[Archive with the image, which is imported into the node'\''s containerd first]:FILE:_files' \
'(--dry-run)--output-dir=[Write the files into this directory, and change nothing]:DIR:_files' \
'--root=[Where the node'\''s files are]:DIR:_files' \
'--timeout=[How long to wait for other nodes and for this one; then everything is restored]:DURATION:_default' \
'--dry-run[Show what would be changed, and change nothing]' \
'--yes[Do not ask]' \
'-h[Print help (see more with '\''--help'\'')]' \
'--help[Print help (see more with '\''--help'\'')]' \
':platform -- What set up the node:((kubeadm\:"Static pods in /etc/kubernetes/manifests"))' \
&& ret=0
;;
(uninstall)
_arguments "${_arguments_options[@]}" : \
'--root=[Where the node'\''s files are]:DIR:_files' \
'--timeout=[How long to wait for other nodes and for this one; then everything is restored]:DURATION:_default' \
'--force[Uninstall even if clients would lose what only other servers serve, or if etcd cannot be asked]' \
'--dry-run[Show what would be changed, and change nothing]' \
'--yes[Do not ask]' \
'-h[Print help (see more with '\''--help'\'')]' \
'--help[Print help (see more with '\''--help'\'')]' \
':platform -- What set up the node:((kubeadm\:"Static pods in /etc/kubernetes/manifests"))' \
&& ret=0
;;
(version)
_arguments "${_arguments_options[@]}" : \
'-h[Print help]' \
'--help[Print help]' \
&& ret=0
;;
        esac
    ;;
esac
}

(( $+functions[_kube-interop-proxy_commands] )) ||
_kube-interop-proxy_commands() {
    local commands; commands=(
'run:Run the proxy until SIGTERM or SIGINT' \
'check:Print every problem of a configuration file; exit 1 if there is any' \
'status:Show the state of a running proxy and of its peers; exit 0 if it is ready, else 1' \
'forget:Drop what is known of a server that will not come back\: what only it served is then a 404, not a 503' \
'install:Put the proxy in front of this node'\''s kube-apiserver\: shows the changes, asks, waits until both are ready and other servers see the proxy, and restores everything if they are not' \
'uninstall:Remove the proxy from this node, and keep everything else that was changed since' \
'version:Print the version, and the commit that the program was built from' \
    )
    _describe -t commands 'kube-interop-proxy commands' commands "$@"
}
(( $+functions[_kube-interop-proxy__subcmd__check_commands] )) ||
_kube-interop-proxy__subcmd__check_commands() {
    local commands; commands=()
    _describe -t commands 'kube-interop-proxy check commands' commands "$@"
}
(( $+functions[_kube-interop-proxy__subcmd__forget_commands] )) ||
_kube-interop-proxy__subcmd__forget_commands() {
    local commands; commands=()
    _describe -t commands 'kube-interop-proxy forget commands' commands "$@"
}
(( $+functions[_kube-interop-proxy__subcmd__install_commands] )) ||
_kube-interop-proxy__subcmd__install_commands() {
    local commands; commands=()
    _describe -t commands 'kube-interop-proxy install commands' commands "$@"
}
(( $+functions[_kube-interop-proxy__subcmd__run_commands] )) ||
_kube-interop-proxy__subcmd__run_commands() {
    local commands; commands=()
    _describe -t commands 'kube-interop-proxy run commands' commands "$@"
}
(( $+functions[_kube-interop-proxy__subcmd__status_commands] )) ||
_kube-interop-proxy__subcmd__status_commands() {
    local commands; commands=()
    _describe -t commands 'kube-interop-proxy status commands' commands "$@"
}
(( $+functions[_kube-interop-proxy__subcmd__uninstall_commands] )) ||
_kube-interop-proxy__subcmd__uninstall_commands() {
    local commands; commands=()
    _describe -t commands 'kube-interop-proxy uninstall commands' commands "$@"
}
(( $+functions[_kube-interop-proxy__subcmd__version_commands] )) ||
_kube-interop-proxy__subcmd__version_commands() {
    local commands; commands=()
    _describe -t commands 'kube-interop-proxy version commands' commands "$@"
}

if [ "$funcstack[1]" = "_kube-interop-proxy" ]; then
    _kube-interop-proxy "$@"
else
    compdef _kube-interop-proxy kube-interop-proxy
fi
