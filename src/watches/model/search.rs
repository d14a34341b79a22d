//! Breadth-first search: every order of steps, each state once. What is found first has the shortest trace.

use std::collections::{HashSet, VecDeque};
use std::fmt::Debug;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hash};

/// A step, and what comes of it; an error if that must not be.
pub(super) type Next<M> = (<M as Model>::Step, Result<<M as Model>::State, String>);

/// What can happen.
pub(super) trait Model: Sized {
    type State: Hash;
    type Step: Copy + Debug;

    /// What can happen next.
    fn steps(&self, state: &Self::State) -> Vec<Next<Self>>;
}

/// What must not be, and how it came.
#[derive(Debug)]
pub(super) struct Violation {
    pub(super) what: String,
    pub(super) trace: Vec<String>,
}

/// Tries everything. Returns how many states there are; an error also if there are more than `most`.
pub(super) fn search<M: Model>(
    model: &M,
    initial: M::State,
    most: usize,
) -> Result<usize, Violation> {
    let hasher = BuildHasherDefault::<DefaultHasher>::default();
    let mut known = HashSet::from([hasher.hash_one(&initial)]);
    // The step to each state, and the state before it.
    let mut reached: Vec<Option<(usize, M::Step)>> = vec![None];
    let mut next = VecDeque::from([(0, initial)]);
    while let Some((from, state)) = next.pop_front() {
        for (step, after) in model.steps(&state) {
            let trace = || trace(&reached, from, step);
            let after = after.map_err(|what| Violation {
                what,
                trace: trace(),
            })?;
            if !known.insert(hasher.hash_one(&after)) {
                continue;
            }
            if known.len() > most {
                let what = format!("there are more than {most} states");
                return Err(Violation {
                    what,
                    trace: trace(),
                });
            }
            next.push_back((reached.len(), after));
            reached.push(Some((from, step)));
        }
    }
    Ok(known.len())
}

/// The steps to a state, and one more.
fn trace<S: Copy + Debug>(reached: &[Option<(usize, S)>], mut from: usize, last: S) -> Vec<String> {
    let mut steps = vec![format!("{last:?}")];
    while let Some((before, step)) = reached[from] {
        steps.push(format!("{step:?}"));
        from = before;
    }
    steps.reverse();
    steps
}
