import type { Run, Step } from '../../api/client';
import type { State } from '../../model/work';
import { nodesOf } from './conductor_plan';
import { planned, planOf } from './plan';

/** The states of the parts of a run's plan, where its pattern has one. */
export function partStates(run: Run, steps: Step[]): State[] {
  if (run.pattern === 'team') {
    return planOf(run, steps, planned(steps).at(-1) ?? 0).map(({ state }) => state);
  }
  if (run.pattern === 'orchestrate') return nodesOf(run, steps).map(({ state }) => state);
  return [];
}
