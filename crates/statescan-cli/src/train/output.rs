//! The folder in which a training is saved.

use super::plot::plot;
use crate::destination::OutputFolder;
use crate::error::Result;
use statescan_models::{Trainer, write_file};
use std::path::{Path, PathBuf};

/// The folder, within that of a training, of the model that took least of the held-out set.
pub(super) const BEST: &str = "best";

/// Steps, and an evaluation after how many of them.
type Progress = (usize, Option<(usize, f32)>);

/// A folder that a training is saved in.
pub(super) struct Output<'a> {
    folder: OutputFolder,
    /// Before the first save of a new training: what the folder had of a model goes then, and what belongs to the model comes from this folder.
    replaces: Option<Option<&'a Path>>,
    /// Steps, and the latest evaluation, of the training that was saved; and of the best model.
    saved: Option<Progress>,
    best: Option<(usize, f32)>,
}

impl<'a> Output<'a> {
    pub(super) fn new(folder: OutputFolder, replaces: Option<Option<&'a Path>>) -> Self {
        Output { folder, replaces, saved: None, best: None }
    }

    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The folder of the best model.
    pub(super) fn best(&self) -> PathBuf {
        self.path().join(BEST)
    }

    /// Saves a training, if it has gone on since it was saved, and the model beside it, if that is the best one so far.
    pub(super) fn save(&mut self, trainer: &Trainer) -> Result<()> {
        let now = (trainer.losses().len(), trainer.evaluations().last().copied());
        if self.saved == Some(now) {
            return Ok(());
        }
        if let Some(from) = self.replaces.take() {
            // the file that a training is resumed from is written when all else that belongs to it is there
            self.folder.replace(&from.into_iter().collect::<Vec<_>>())?;
            self.folder.remove_model(BEST)?;
        }
        trainer.save(self.path())?;
        let plot = plot(trainer.losses(), trainer.evaluations(), trainer.unit());
        write_file(self.path().join("loss.svg"), plot.as_bytes())?;
        let best = trainer.best().filter(|(step, _)| *step > 0 && *step == now.0);
        if best.is_some() && best != self.best {
            trainer.save_model(self.best())?;
            OutputFolder::open(&self.best())?.replace(&[self.path()])?;
            self.best = best;
        }
        self.saved = Some(now);
        Ok(())
    }
}
