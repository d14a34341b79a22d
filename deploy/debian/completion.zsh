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
'--config=[Configuration file (YAML)]:CONFIG:_files' \
'--log-format=[Form of the log lines on stderr. What is logged is chosen with logging.filter in the configuration, or with RUST_LOG; access lines have the target \`access\`]:LOG_FORMAT:(text json)' \
'-h[Print help]' \
'--help[Print help]' \
&& ret=0
;;
(check)
_arguments "${_arguments_options[@]}" : \
'--config=[Configuration file (YAML)]:CONFIG:_files' \
'--live[Look at what the file names, too\: etcd, the kube-apiserver, peers, certificates, clocks. One line each with what to do; exit 1 if there is any problem. Changes nothing]' \
'-h[Print help]' \
'--help[Print help]' \
&& ret=0
;;
(status)
_arguments "${_arguments_options[@]}" : \
'--admin=[Its admin port (admin.bindAddress)]:HOST:PORT:_default' \
'-o+[What to show]:OUTPUT:(table json)' \
'--output=[What to show]:OUTPUT:(table json)' \
'--peers=[How many other servers there must be, at least]:N:_default' \
'--timeout=[How long to wait; exit 1 then]:DURATION:_default' \
'(-o --output)--wait[Show nothing, but wait until this server and --peers others serve, everything is known of them, and nothing has to be refused\: then the next node may be stopped]' \
'-h[Print help]' \
'--help[Print help]' \
&& ret=0
;;
(forget)
_arguments "${_arguments_options[@]}" : \
'--config=[Configuration file (YAML) of any proxy of the cluster; what it says of etcd is used]:CONFIG:_files' \
'--yes[Do not ask]' \
'-h[Print help]' \
'--help[Print help]' \
':server_id -- Its server ID, as `status` shows it:_default' \
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
'status:Show what a running proxy says of itself and of its peers; exit 0 if it is ready, else 1' \
'forget:Drop what is known of a server that will not come back\: what only it served is a 404 then, not a 503' \
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
