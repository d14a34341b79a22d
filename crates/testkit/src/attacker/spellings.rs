//! Spellings of the headers that only peers may send.

/// Name and value, as they stand.
pub type Field = (String, String);

const ADMIN: [(&str, &str); 4] = [
    ("X-Remote-User", "kubernetes-admin"),
    ("X-Remote-Group", "system:masters"),
    ("X-Remote-Uid", "0"),
    ("X-Remote-Extra-Scopes", "all"),
];

fn field(name: &str, value: &str) -> Field {
    (name.to_owned(), value.to_owned())
}

fn admin(spell: impl Fn(&str) -> String) -> Vec<Field> {
    let fields = ADMIN.into_iter();
    fields
        .map(|(name, value)| (spell(name), value.to_owned()))
        .collect()
}

fn mixed(name: &str) -> String {
    let letters = name.chars().enumerate();
    let letters = letters.map(|(index, letter)| match index % 2 {
        0 => letter.to_ascii_lowercase(),
        _ => letter.to_ascii_uppercase(),
    });
    letters.collect()
}

/// Claims to be the administrator. HTTP/2 allows only lower case, and rejects other names.
pub fn identities() -> Vec<Vec<Field>> {
    let lower = || admin(str::to_lowercase);
    let with = |more: Field| [vec![more], lower()].concat();
    vec![
        lower(),
        admin(str::to_owned),
        admin(str::to_uppercase),
        admin(mixed),
        admin(|name| name.to_lowercase().replace('-', "_")),
        admin(|name| name.to_lowercase().replacen('-', "_", 1)),
        admin(|name| name.to_uppercase().replace('-', "_")),
        // Twice, one of them empty.
        [vec![field("x-remote-user", "")], lower(), lower()].concat(),
        // As the connection's own, which ends at a proxy.
        with(field("Connection", "close, X-Remote-User, X-Remote-Group")),
        // Within another line.
        vec![field(
            "x",
            "x\nX-Remote-User: kubernetes-admin\nX-Remote-Group: system:masters",
        )],
        vec![field(
            "x",
            "x\r\n X-Remote-User: kubernetes-admin\r\n X-Remote-Group: system:masters",
        )],
        vec![field("x", "x\rX-Remote-User: kubernetes-admin")],
        vec![
            field("x-remote-user ", "kubernetes-admin"),
            field("x-remote-group ", "system:masters"),
        ],
        vec![field("x-remote-user\t", "kubernetes-admin")],
        vec![field("x-remote-user\0", "kubernetes-admin")],
        // As other proxies say it.
        vec![
            field("x-forwarded-user", "kubernetes-admin"),
            field("x-forwarded-groups", "system:masters"),
        ],
        vec![
            field("remote-user", "kubernetes-admin"),
            field("x-remote-users", "kubernetes-admin"),
        ],
        // Groups for any user.
        vec![field("x-remote-group", "system:masters")],
        vec![
            field("x-remote-extra-scopes", "all"),
            field("x-remote-uid", "0"),
        ],
        // What users may send, and the apiserver decides about.
        vec![
            field("impersonate-user", "kubernetes-admin"),
            field("impersonate-group", "system:masters"),
        ],
    ]
}

/// Claims that a peer rerouted it.
pub fn marks() -> Vec<Vec<Field>> {
    let names = [
        "x-kubernetes-apiserver-rerouted",
        "x-kubernetes-peer-proxied",
    ];
    let spelled = names.iter().flat_map(|name| {
        [
            (*name).to_owned(),
            name.replace('-', "_"),
            name.replacen('-', "_", 1),
        ]
    });
    spelled
        .map(|name| [vec![field(&name, "true")], admin(str::to_lowercase)].concat())
        .collect()
}
