# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_kube_interop_proxy_global_optspecs
    string join \n h/help V/version
end

function __fish_kube_interop_proxy_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_kube_interop_proxy_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_kube_interop_proxy_using_subcommand
    set -l cmd (__fish_kube_interop_proxy_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c kube-interop-proxy -n "__fish_kube_interop_proxy_needs_command" -s h -l help -d 'Print help'
complete -c kube-interop-proxy -n "__fish_kube_interop_proxy_needs_command" -s V -l version -d 'Print version'
complete -c kube-interop-proxy -n "__fish_kube_interop_proxy_needs_command" -f -a "run" -d 'Run the proxy until SIGTERM or SIGINT'
complete -c kube-interop-proxy -n "__fish_kube_interop_proxy_needs_command" -f -a "check" -d 'Print every problem of a configuration file; exit 1 if there is any'
complete -c kube-interop-proxy -n "__fish_kube_interop_proxy_needs_command" -f -a "status" -d 'Show the state of a running proxy and of its peers; exit 0 if it is ready, else 1'
complete -c kube-interop-proxy -n "__fish_kube_interop_proxy_needs_command" -f -a "forget" -d 'Drop what is known of a server that will not come back: what only it served is then a 404, not a 503'
complete -c kube-interop-proxy -n "__fish_kube_interop_proxy_needs_command" -f -a "install" -d 'Put the proxy in front of this node\'s kube-apiserver: shows the changes, asks, waits until both are ready and other servers see the proxy, and restores everything if they are not'
complete -c kube-interop-proxy -n "__fish_kube_interop_proxy_needs_command" -f -a "uninstall" -d 'Remove the proxy from this node, and keep everything else that was changed since'
complete -c kube-interop-proxy -n "__fish_kube_interop_proxy_needs_command" -f -a "version" -d 'Print the version, and the commit that the program was built from'
complete -c kube-interop-proxy -n "__fish_kube_interop_proxy_using_subcommand run" -l config -d 'Configuration file (YAML)' -r -F
complete -c kube-interop-proxy -n "__fish_kube_interop_proxy_using_subcommand run" -l log-format -d 'Form of the log lines on stderr. What is logged is chosen with logging.filter in the configuration, or with RUST_LOG; access lines have the target `access`' -r -f -a "text\t''
json\t''"
complete -c kube-interop-proxy -n "__fish_kube_interop_proxy_using_subcommand run" -s h -l help -d 'Print help'
complete -c kube-interop-proxy -n "__fish_kube_interop_proxy_using_subcommand check" -l config -d 'Configuration file (YAML)' -r -F
complete -c kube-interop-proxy -n "__fish_kube_interop_proxy_using_subcommand check" -s o -l output -d 'What to print' -r -f -a "text\t'Each finding with what to do'
short\t'Warnings and problems, one short line each'
json\t'One JSON document'"
complete -c kube-interop-proxy -n "__fish_kube_interop_proxy_using_subcommand check" -l live -d 'Also check what the file names: etcd, the kube-apiserver, peers, certificates, clocks. One line each with what to do; exit 1 if there is any problem. Changes nothing'
complete -c kube-interop-proxy -n "__fish_kube_interop_proxy_using_subcommand check" -l pre -d 'Check a kubeadm node before the proxy is installed: what `install kubeadm` makes of kube-apiserver\'s manifest, what it names, kubelet, the container runtime, and what uses the ports. Changes nothing, and reads no configuration file'
complete -c kube-interop-proxy -n "__fish_kube_interop_proxy_using_subcommand check" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c kube-interop-proxy -n "__fish_kube_interop_proxy_using_subcommand status" -l admin -d 'Its admin port (admin.bindAddress)' -r
complete -c kube-interop-proxy -n "__fish_kube_interop_proxy_using_subcommand status" -s o -l output -d 'What to show' -r -f -a "table\t''
json\t''"
complete -c kube-interop-proxy -n "__fish_kube_interop_proxy_using_subcommand status" -l peers -d 'How many other servers there must be, at least; by default all that are known' -r
complete -c kube-interop-proxy -n "__fish_kube_interop_proxy_using_subcommand status" -l timeout -d 'How long to wait before exiting with 1' -r
complete -c kube-interop-proxy -n "__fish_kube_interop_proxy_using_subcommand status" -l wait -d 'Show nothing, but wait until this server and --peers others serve, everything is known of them, and nothing has to be refused: then the next node may be stopped'
complete -c kube-interop-proxy -n "__fish_kube_interop_proxy_using_subcommand status" -s h -l help -d 'Print help'
complete -c kube-interop-proxy -n "__fish_kube_interop_proxy_using_subcommand forget" -l config -d 'Configuration file (YAML) of any proxy of the cluster; what it says of etcd is used' -r -F
complete -c kube-interop-proxy -n "__fish_kube_interop_proxy_using_subcommand forget" -l yes -d 'Do not ask'
complete -c kube-interop-proxy -n "__fish_kube_interop_proxy_using_subcommand forget" -s h -l help -d 'Print help'
complete -c kube-interop-proxy -n "__fish_kube_interop_proxy_using_subcommand install" -l layout -d 'How the proxy runs. By default as it does now, or as a pod of its own' -r -f -a "own-pod\t'A static pod of its own: an upgrade of the apiserver does not stop it'
sidecar\t'A second container of the apiserver\'s pod'
native-sidecar\t'A native sidecar of the apiserver\'s pod; kubelet must be 1.29 or later'"
complete -c kube-interop-proxy -n "__fish_kube_interop_proxy_using_subcommand install" -l image -d 'Image of the proxy. By default the one that it has now; at first, and with --image-archive, that of this version' -r
complete -c kube-interop-proxy -n "__fish_kube_interop_proxy_using_subcommand install" -l virtual-ip -d 'A virtual IP that this node may get, if neither kube-vip\'s nor keepalived\'s files nor kubeconfigs name it. Can be given several times' -r
complete -c kube-interop-proxy -n "__fish_kube_interop_proxy_using_subcommand install" -l image-archive -d 'Archive with the image, which is imported into the node\'s containerd first' -r -F
complete -c kube-interop-proxy -n "__fish_kube_interop_proxy_using_subcommand install" -l output-dir -d 'Write the files into this directory, and change nothing' -r -F
complete -c kube-interop-proxy -n "__fish_kube_interop_proxy_using_subcommand install" -l root -d 'Where the node\'s files are' -r -F
complete -c kube-interop-proxy -n "__fish_kube_interop_proxy_using_subcommand install" -l timeout -d 'How long to wait for other nodes and for this one; then everything is restored' -r
complete -c kube-interop-proxy -n "__fish_kube_interop_proxy_using_subcommand install" -l dry-run -d 'Show what would be changed, and change nothing'
complete -c kube-interop-proxy -n "__fish_kube_interop_proxy_using_subcommand install" -l yes -d 'Do not ask'
complete -c kube-interop-proxy -n "__fish_kube_interop_proxy_using_subcommand install" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c kube-interop-proxy -n "__fish_kube_interop_proxy_using_subcommand uninstall" -l root -d 'Where the node\'s files are' -r -F
complete -c kube-interop-proxy -n "__fish_kube_interop_proxy_using_subcommand uninstall" -l timeout -d 'How long to wait for other nodes and for this one; then everything is restored' -r
complete -c kube-interop-proxy -n "__fish_kube_interop_proxy_using_subcommand uninstall" -l force -d 'Uninstall even if clients would lose what only other servers serve, or if etcd cannot be asked'
complete -c kube-interop-proxy -n "__fish_kube_interop_proxy_using_subcommand uninstall" -l dry-run -d 'Show what would be changed, and change nothing'
complete -c kube-interop-proxy -n "__fish_kube_interop_proxy_using_subcommand uninstall" -l yes -d 'Do not ask'
complete -c kube-interop-proxy -n "__fish_kube_interop_proxy_using_subcommand uninstall" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c kube-interop-proxy -n "__fish_kube_interop_proxy_using_subcommand version" -s h -l help -d 'Print help'
