//! Answers that are kept for the next call: a model calls few different problems, again and again.

use std::borrow::Borrow;

/// The last answers of a costly function of its key.
#[derive(Debug)]
pub(crate) struct Recent<K, V> {
    kept: Vec<(K, V)>,
    /// Index of the oldest one, once there are as many as are kept.
    oldest: usize,
}

/// Answers that are kept: comparing keys costs little, for different ones differ early.
const KEPT: usize = 64;

impl<K, V: Clone> Recent<K, V> {
    pub(crate) const fn new() -> Self {
        Recent { kept: Vec::new(), oldest: 0 }
    }

    /// The answer for a key: one that is kept, or what `find` says, which is kept then.
    pub(crate) fn get<Q>(&mut self, key: &Q, find: impl FnOnce() -> V) -> V
    where
        K: Borrow<Q>,
        Q: PartialEq + ToOwned<Owned = K> + ?Sized,
    {
        if let Some((_, answer)) = self.kept.iter().find(|(known, _)| known.borrow() == key) {
            return answer.clone();
        }
        let (key, answer) = (key.to_owned(), find());
        if self.kept.len() < KEPT {
            self.kept.push((key, answer.clone()));
        } else {
            self.kept[self.oldest] = (key, answer.clone());
            self.oldest = (self.oldest + 1) % KEPT;
        }
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_found_once_while_they_are_kept() {
        let mut recent = Recent::new();
        let mut ask = |key: usize| {
            let mut found = false;
            let answer = recent.get(&key, || {
                found = true;
                key * 10
            });
            assert_eq!(answer, key * 10);
            found
        };
        assert!((0..KEPT).all(&mut ask) && !(0..KEPT).any(&mut ask));
        // one more takes the place of the first
        assert!(ask(KEPT) && !ask(KEPT) && !ask(1) && ask(0) && !ask(0) && ask(1));
    }
}
