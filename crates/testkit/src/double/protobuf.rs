//! A minimal protobuf writer for the double's answers in Kubernetes' envelope.

/// A message under construction.
#[derive(Default)]
pub struct Message(Vec<u8>);

impl Message {
    pub fn bytes(mut self, field: u8, value: &[u8]) -> Self {
        self.0.push(field << 3 | 2);
        varint(&mut self.0, value.len() as u64);
        self.0.extend_from_slice(value);
        self
    }

    pub fn string(self, field: u8, value: &str) -> Self {
        self.bytes(field, value.as_bytes())
    }

    pub fn message(self, field: u8, value: &Self) -> Self {
        self.bytes(field, &value.0)
    }

    pub fn number(mut self, field: u8, value: u64) -> Self {
        self.0.push(field << 3);
        varint(&mut self.0, value);
        self
    }

    pub fn finish(self) -> Vec<u8> {
        self.0
    }
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// `k8s\0` and `runtime.Unknown`. Like Go's, it writes empty fields too.
pub fn envelope(api_version: &str, kind: &str, raw: &Message) -> Vec<u8> {
    let kind = Message::default().string(1, api_version).string(2, kind);
    let unknown = Message::default()
        .message(1, &kind)
        .message(2, raw)
        .string(3, "")
        .string(4, "");
    [b"k8s\0".as_slice(), &unknown.finish()].concat()
}
