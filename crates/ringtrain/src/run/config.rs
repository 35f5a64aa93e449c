//! The configuration in which all ranks of a training must agree: all settings, the form of the
//! data, and whether checkpoints are saved and loaded.

use serde_json::Value;
use strategy::JobConfig;

use super::job::Job;
use crate::checkpoint::Checkpoints;

/// The settings of a job, by the names of their options.
pub(crate) fn of(job: &Job, checkpoints: Option<&Checkpoints>) -> JobConfig {
    let settings = serde_json::to_value(&job.settings).unwrap_or_default();
    let settings = settings.as_object().into_iter().flatten();
    let options = settings.map(|(field, value)| {
        let value = match value {
            Value::String(text) => text.clone(),
            Value::Null => "none".into(),
            // Fractions of the settings are of this precision.
            Value::Number(number) if number.is_f64() => {
                number.as_f64().map_or_else(String::new, |it| (it as f32).to_string())
            }
            other => other.to_string(),
        };
        (format!("--{}", field.replace('_', "-")), value)
    });
    let (data, shape) = (&job.data, job.data.shape);
    let weights = job.weights().map_or("none".into(), |it| it.checksum.clone());
    let data = [
        ("the images".to_owned(), format!("{} of {shape}", data.train.len())),
        ("the test images".to_owned(), data.test.len().to_string()),
        ("the classes".to_owned(), data.classes.len().to_string()),
        ("the checksum of --weights".to_owned(), weights),
        ("--checkpoint".to_owned(), checkpoints.map_or("none".into(), Checkpoints::schedule)),
    ];
    options.chain(data).collect()
}
