//! One discovery for a mixed cluster: merging and negotiating documents. Not built yet: `discovery.mode` is `Local`.
