import { useQueryClient } from '@tanstack/react-query';
import { Link, useParams } from '@tanstack/react-router';
import { useState } from 'react';
import { api, ask, type Schedule } from '../../api/client';
import { useAction, useFirings, useSchedule } from '../../api/queries';
import { capital, sentence, shortId } from '../../model/format';
import type { State } from '../../model/work';
import { Button, Empty, Loading, Problem } from '../../parts/controls';
import { Dialog } from '../../parts/dialog';
import { Glyph } from '../../parts/glyph';
import { Moment, Said } from '../../parts/text';
import { View as Frame } from '../../shell/layout';
import { Missing } from '../missing';
import { NextTimes, zone } from '../next_times';
import { Facts } from '../work_head';
import { rhythm, scheduleState } from './schedules';

type Action = 'pause' | 'resume' | 'cancel' | 'run';

const OUTCOMES: Record<string, State> = {
  held: 'limit',
  starting: 'queued',
  started: 'run',
  skipped: 'none',
  missed: 'bad',
  failed: 'bad',
};

/** States of started work. A firing does not tell whether completed work is verified. */
const STATUSES: Record<string, State> = {
  queued: 'queued',
  blocked: 'blocked',
  running: 'run',
  waiting: 'limit',
  paused: 'paused',
  completed: 'said',
  failed: 'bad',
  cancelled: 'cancelled',
};

const TOLD: [string, string][] = [
  ['prompt', 'Prompt'],
  ['goal', 'Goal'],
  ['task', 'Task'],
  ['agent', 'Agent'],
  ['model', 'Model'],
  ['template', 'Template'],
];

/** The work that a schedule starts: prompt, agent and checks. */
function startsOf(schedule: Schedule): [string, React.ReactNode][] {
  const spec = schedule.spec as Record<string, unknown>;
  const facts: [string, React.ReactNode][] = TOLD.filter(([name]) => typeof spec[name] === 'string').map(
    ([name, label]) => [
      label,
      <Said key={name} className="break">
        {String(spec[name])}
      </Said>,
    ],
  );
  const checks = Array.isArray(spec.checks) ? spec.checks : [];
  if (checks.length === 0) return facts;
  const names = checks.map((check) =>
    typeof check === 'string' ? check : String(check.command ?? check.kind),
  );
  return [
    ...facts,
    [
      'Checks',
      <Said key="checks" className="break">
        {names.join(', ')}
      </Said>,
    ],
  ];
}

export function View() {
  const { id } = useParams({ from: '/inside/schedules/$id' });
  const read = useSchedule(id);
  const firings = useFirings(id);
  const queries = useQueryClient();
  const act = useAction((action: Action) =>
    ask(api.POST(`/api/v1/schedules/{schedule_id}/${action}`, { params: { path: { schedule_id: id } } })),
  );
  const [isDeleting, setDeleting] = useState(false);
  const schedule = read.data;
  if (read.error) return <Missing what={read.error.message} />;
  if (!schedule) {
    return (
      <Frame title={shortId(id)}>
        <Loading />
      </Frame>
    );
  }
  const does = (action: Action) =>
    act.mutate(action, { onSuccess: () => queries.invalidateQueries({ queryKey: ['schedules'] }) });
  const open = schedule.status === 'active' || schedule.status === 'paused';
  return (
    <Frame title={schedule.title}>
      <div className="subject">
        <div className="head">
          <div className="grow">
            <h1>
              <Said>{schedule.title}</Said>
            </h1>
            <p className="verdict">
              <Glyph state={scheduleState(schedule)} label={schedule.status} />
              <span>
                <b>{sentence(capital(schedule.status))}</b>{' '}
                {schedule.next_at ? (
                  <>
                    Next at <Moment at={schedule.next_at} />
                    {schedule.cron && schedule.timezone !== zone() && ` your time (${zone()})`}.
                  </>
                ) : (
                  schedule.reason && <Said>{sentence(capital(schedule.reason))}</Said>
                )}
              </span>
            </p>
          </div>
          <div>
            <div className="actions">
              {open && <Button onClick={() => does('run')}>Start now</Button>}
              {schedule.status === 'active' && <Button onClick={() => does('pause')}>Pause</Button>}
              {schedule.status === 'paused' && (
                <Button look="primary" onClick={() => does('resume')}>
                  Resume
                </Button>
              )}
              {open && (
                <Button look="danger" onClick={() => setDeleting(true)}>
                  Delete schedule
                </Button>
              )}
            </div>
            <Problem error={act.error} />
          </div>
        </div>
      </div>
      <div className="cols mt-5">
        <div className="body">
          {firings.data?.firings.length === 0 && <Empty title="Nothing started yet" />}
          {firings.data && firings.data.firings.length > 0 && (
            <ul className="nest panel happenings">
              {firings.data.firings.map((firing) => (
                <li key={firing.slot}>
                  <span className="faint">
                    <Moment at={firing.slot} />
                  </span>
                  <span className="t">
                    <Glyph
                      state={STATUSES[firing.subject_status ?? ''] ?? OUTCOMES[firing.outcome] ?? 'todo'}
                      label={firing.subject_status ?? firing.outcome}
                    />
                    <span>{firing.outcome}</span>
                    {firing.subject && (
                      <Link
                        to={firing.subject.startsWith('run_') ? '/runs/$id/{-$tab}' : '/tasks/$id/{-$tab}'}
                        params={{ id: firing.subject }}
                      >
                        <code>{shortId(firing.subject)}</code> {firing.subject_status}
                      </Link>
                    )}
                    {firing.reason && <Said className="faint cut">{firing.reason}</Said>}
                  </span>
                </li>
              ))}
            </ul>
          )}
        </div>
        <aside className="inspector" aria-label="About this schedule">
          <section>
            <h2>When</h2>
            <Facts
              facts={[
                ['Repeats', <Said key="r">{rhythm(schedule)}</Said>],
                ...(schedule.cron
                  ? ([['Cron', <code key="c">{schedule.cron}</code>]] as [string, React.ReactNode][])
                  : []),
                ['Missed', schedule.missed],
                ['Overlap', schedule.overlap ? 'allowed' : 'not allowed'],
                ['Started', schedule.started],
              ]}
            />
            {open && schedule.cron && schedule.timezone === zone() && (
              <p className="hint">
                <NextTimes cron={schedule.cron} />
              </p>
            )}
          </section>
          <section>
            <h2>What</h2>
            <Facts
              facts={[
                ['Kind', schedule.kind],
                ...startsOf(schedule),
                ['Directory', <code key="d">{schedule.directory}</code>],
              ]}
            />
          </section>
        </aside>
      </div>
      {isDeleting && (
        <Dialog title="Delete this schedule?" close={() => setDeleting(false)}>
          <p className="strong">
            <Said>{schedule.title}</Said>
          </p>
          <p>The schedule starts no more work. Work that it has started continues. This cannot be undone.</p>
          <div className="acts">
            <Button
              look="danger"
              onClick={() => {
                setDeleting(false);
                does('cancel');
              }}
            >
              Delete
            </Button>
            <Button look="quiet" onClick={() => setDeleting(false)}>
              Cancel
            </Button>
          </div>
        </Dialog>
      )}
    </Frame>
  );
}
