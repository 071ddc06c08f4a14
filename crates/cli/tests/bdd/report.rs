//! Counts scenarios and prints the failed ones, or all of them in verbose mode.

use std::collections::HashMap;

use cucumber::{
    Event, Writer, event,
    gherkin::{Feature, Scenario},
    parser, writer,
};

use crate::steps::World;

type CucumberEvent = event::Cucumber<World>;
type ScenarioKey = (event::Source<Feature>, event::Source<Scenario>);

pub(crate) struct ScenarioReport {
    quiet: bool,
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    pub(crate) errors: usize,
    open: HashMap<ScenarioKey, (bool, Vec<Event<CucumberEvent>>)>,
    raw: writer::Basic,
    full: writer::Normalize<World, writer::Basic>,
}

impl ScenarioReport {
    pub(crate) fn new(quiet: bool) -> Self {
        let colour = writer::Coloring::Auto;
        Self {
            quiet,
            passed: 0,
            failed: 0,
            errors: 0,
            open: HashMap::new(),
            raw: writer::Basic::raw(std::io::stdout(), colour, writer::Verbosity::Default),
            full: writer::Basic::stdout(),
        }
    }
}

impl Writer<World> for ScenarioReport {
    type Cli = writer::basic::Cli;

    async fn handle_event(&mut self, event: parser::Result<Event<CucumberEvent>>, cli: &Self::Cli) {
        use event::{Cucumber, Feature as InFeature, Hook, Scenario as InScenario, Step};
        if !self.quiet {
            self.full.handle_event(event.clone(), cli).await;
        }
        let event = match event {
            Ok(event) => event,
            Err(error) => {
                self.errors += 1;
                if self.quiet {
                    Writer::<World>::handle_event(&mut self.raw, Err(error), cli).await;
                }
                return;
            }
        };
        let Cucumber::Feature(feature, InFeature::Scenario(scenario, state)) = &event.value else {
            return;
        };
        let bad = matches!(
            &state.event,
            InScenario::Step(_, Step::Failed(..))
                | InScenario::Background(_, Step::Failed(..))
                | InScenario::Hook(_, Hook::Failed(..))
        );
        let done = matches!(&state.event, InScenario::Finished);
        let key = (feature.clone(), scenario.clone());
        let slot = self.open.entry(key.clone()).or_default();
        slot.0 |= bad;
        slot.1.push(event);
        if !done {
            return;
        }
        let (bad, events) = self.open.remove(&key).unwrap();
        if !bad {
            self.passed += 1;
            return;
        }
        self.failed += 1;
        if self.quiet {
            let start = Event::new(CucumberEvent::feature_started(key.0));
            self.raw.handle_event(Ok(start), cli).await;
            for event in events {
                self.raw.handle_event(Ok(event), cli).await;
            }
        }
    }
}

impl writer::Normalized for ScenarioReport {}
