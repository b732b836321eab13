//! `catalogue validate`, which needs neither configuration nor peers, and `catalogue accept`.

use std::path::PathBuf;

use serde_json::json;

use super::EXIT_INPUT;
use super::commands::{Problem, wrong};
use super::print::{clean, plural, say};
use crate::agent::Agent;
use crate::catalogue::{self, Catalogue, CatalogueErrors};
use crate::config::TokenUnit;
use crate::plan::Notes;

/// Checks files as the agent reads them; exit 2 where one is wrong.
///
/// # Errors
/// A file that is no catalogue.
pub fn validate(files: &[PathBuf], unit: TokenUnit, as_json: bool) -> Result<(), Problem> {
    let checked: Vec<(String, Result<Catalogue, CatalogueErrors>)> =
        files.iter().map(|path| (path.display().to_string(), catalogue::read_for(path, Some(unit)))).collect();
    if as_json {
        let files: Vec<_> = checked.iter().map(|(file, read)| report(file, read)).collect();
        say(serde_json::to_string_pretty(&files).unwrap_or_default())?;
    } else {
        for (file, read) in &checked {
            match read {
                Ok(catalogue) => say(format_args!("{}: {}", clean(file), summary(catalogue)))?,
                Err(errors) => {
                    for problem in &errors.problems {
                        say(clean(&problem.to_string()))?;
                    }
                }
            }
        }
    }
    let bad = checked.iter().filter(|(_, read)| read.is_err()).count();
    if bad == 0 {
        return Ok(());
    }
    Err(Problem {
        code: EXIT_INPUT,
        message: format!("{} of {} cannot be used; nothing in such a file takes effect", bad, plural(checked.len(), "catalogue")),
    })
}

fn summary(catalogue: &Catalogue) -> String {
    let priced = catalogue.models.iter().filter(|model| model.prices.is_some()).count();
    let budget = catalogue.max_budget.map(|budget| format!(", {budget} per month by default")).unwrap_or_default();
    format!(
        "{}: {} orderable, {priced} priced, {} switched off{budget}",
        plural(catalogue.models.len(), "model"),
        catalogue.orderable().len(),
        catalogue.disabled.len()
    )
}

fn report(file: &str, read: &Result<Catalogue, CatalogueErrors>) -> serde_json::Value {
    match read {
        Ok(catalogue) => json!({
            "file": file,
            "valid": true,
            "digest": catalogue.digest,
            "models": catalogue.models.iter().map(|model| json!({
                "served_name": model.served_name,
                "orderable": model.orderable,
                "embedding": model.embedding,
                "input_cost_per_token": model.prices.map(|prices| prices.input.to_string()),
                "output_cost_per_token": model.prices.and_then(|prices| prices.output).map(|output| output.to_string()),
            })).collect::<Vec<_>>(),
            "disabled": catalogue.disabled,
        }),
        Err(errors) => json!({
            "file": file,
            "valid": false,
            "problems": errors.problems.iter().map(|problem| {
                let (line, column) = problem.pos.map_or((None, None), |pos| (Some(pos.line), Some(pos.column)));
                json!({"line": line, "column": column, "field": problem.field, "message": problem.message})
            }).collect::<Vec<_>>(),
        }),
    }
}

/// Lets the catalogue through as it is now, whatever it lost: its digest is noted on every offering, where the running agent
/// reads it.
///
/// # Errors
/// A catalogue that cannot be read, or an offering that cannot be written.
pub async fn accept(agent: &Agent) -> Result<(), Problem> {
    let path = &agent.config.catalogue.file;
    let read = catalogue::read_for(path, agent.smallest_unit()).map_err(|errors| wrong(errors.to_string()))?;
    let mut known = std::collections::BTreeSet::new();
    for settings in &agent.config.offerings {
        let offering = agent.look_at_offering(settings.uuid).await?;
        if let Some(owner) = Notes::read(&offering).owner.filter(|owner| *owner != agent.config.owner) {
            return Err(wrong(format!(
                "offering {} is kept by the agent of {owner:?}; nothing was accepted there",
                settings.uuid.simple()
            )));
        }
        known.extend(crate::plan::remembered(&offering).models);
    }
    let lost: Vec<String> = known.into_iter().filter(|name| read.model(name).is_none()).collect();
    if lost.is_empty() {
        say("the catalogue has every model that the offerings know; there is nothing to accept")?;
    } else {
        say(format_args!("the catalogue lost {}: {}", plural(lost.len(), "model"), clean(&lost.join(", "))))?;
    }
    for settings in &agent.config.offerings {
        let uuid = settings.uuid;
        let mut accepted = false;
        for _ in 0..3 {
            let offering = agent.look_at_offering(uuid).await?;
            let mut notes = Notes::read(&offering);
            if notes.accepted.as_deref() == Some(&read.digest) {
                accepted = true;
                break;
            }
            notes.owner.get_or_insert_with(|| agent.config.owner.clone());
            notes.accepted = Some(read.digest.clone());
            agent.waldur.set_offering_metadata(uuid, &notes.merged_into(&offering)).await?;
        }
        if !accepted {
            return Err(Problem {
                code: 1,
                message: format!("offering {}: Waldur takes the note and does not keep it; try again", uuid.simple()),
            });
        }
        say(format_args!("offering {}: this catalogue is accepted (sha256 {})", uuid.simple(), read.digest))?;
    }
    if !lost.is_empty() {
        let hold = crate::config::show_duration(agent.config.catalogue.hold);
        say(format_args!("each of these models goes once it has been absent for {hold}, as always"))?;
    }
    Ok(())
}
