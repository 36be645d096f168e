import { useQuery } from '@tanstack/react-query';
import { Link } from '@tanstack/react-router';
import { useState } from 'react';
import { api, ask } from '../api/client';
import { actions, useAction } from '../api/queries';
import type { components } from '../api/schema';
import {
  capital,
  counted,
  grouped,
  inline,
  nameOfPath,
  resultsLine,
  sentence,
  shortCommit,
} from '../model/format';
import { price, priceOfSum } from '../model/price';
import { named, type State } from '../model/work';
import { Button, Choices, Empty, Loading, Problem } from '../parts/controls';
import { Glyph } from '../parts/glyph';
import { Moment, Said } from '../parts/text';
import { View as Frame } from '../shell/layout';
import { useScope } from '../shell/preferences';
import { Act } from './act';
import { WorkTo } from './work_link';

type Report = components['schemas']['ReportView'];
type Entry = components['schemas']['ReportEntry'];

const HOURS = { night: 12, day: 24, week: 168 } as const;
type Span = keyof typeof HOURS;

const GROUPS: [Entry['group'], string][] = [
  ['needs', 'Needs you'],
  ['failed', 'Failed or cancelled'],
  ['done', 'Done'],
  ['open', 'Active'],
];

/** The report on all work of a time, for the screen and for paper. */
export function View() {
  const [span, setSpan] = useState<Span>('night');
  const [project] = useScope();
  const read = useQuery({
    queryKey: ['report', span, project ?? null],
    queryFn: () => {
      const since = new Date(Date.now() - HOURS[span] * 3_600_000).toISOString();
      return ask(api.GET('/api/v1/report', { params: { query: { since, project } } }));
    },
  });
  return (
    <Frame title="Report">
      <div className="page stack">
        <div className="tbar">
          <Choices
            label="Time"
            value={span}
            choose={setSpan}
            of={[
              { value: 'night', label: '12 hours' },
              { value: 'day', label: '24 hours' },
              { value: 'week', label: '7 days' },
            ]}
          />
          <Button small onClick={() => window.print()}>
            Print
          </Button>
          {read.data && (
            <a
              className="btn sm"
              download="report.md"
              href={`data:text/markdown;charset=utf-8,${encodeURIComponent(read.data.markdown)}`}
            >
              Markdown
            </a>
          )}
        </div>
        <Problem error={read.error} />
        {read.isPending && <Loading lines={8} />}
        {read.data && <ReportBody report={read.data} />}
      </div>
    </Frame>
  );
}

function ReportBody({ report }: { report: Report }) {
  const { entries } = report;
  const cost = priceOfSum(report.cost);
  if (entries.length === 0) return <Empty title="No work in this time" />;
  const titles = new Map(entries.map(({ id, title }) => [id, title]));
  const done = entries.filter((entry) => entry.status === 'completed');
  const listed = entries.filter((entry) => entry.group === 'needs').length;
  const elsewhere = report.needs_total - listed;
  const verified = done.filter((entry) => entry.verified).length;
  const failed = entries.filter((entry) => entry.status === 'failed').length;
  const cancelled = entries.filter((entry) => entry.status === 'cancelled').length;
  const merged = entries.filter((entry) => entry.merged).length;
  return (
    <>
      <p className="dim">
        <Moment at={report.since} /> to <Moment at={report.until} />: {counted(entries.length, 'item')},{' '}
        {resultsLine({ done: done.length, verified, failed, cancelled, merged })};{' '}
        {cost.usd === null ? 'cost unknown' : price(cost)}
        {cost.unknown > 0 && `, ${counted(cost.unknown, 'attempt')} without a known price`}.
      </p>
      {elsewhere > 0 && (
        <p className="dim">
          <Link to="/">{grouped(elsewhere)} more need you</Link>, from other times or inside runs.
        </p>
      )}
      {GROUPS.map(([group, name]) => {
        const found = entries.filter((entry) => entry.group === group);
        return (
          found.length > 0 && (
            <section key={group} className="section" aria-label={name}>
              <header>
                <h2>{name}</h2>
                <span className="faint">
                  {group === 'needs' ? counted(found.length, 'item') : grouped(found.length)}
                </span>
              </header>
              <ul className="results panel">
                {found.map((entry) => (
                  <One key={entry.id} entry={entry} titleOf={(id) => titles.get(id)} />
                ))}
              </ul>
            </section>
          )
        );
      })}
    </>
  );
}

const costOf = ({ cost_usd }: Entry): string =>
  cost_usd === null ? 'cost unknown' : price({ usd: cost_usd, unknown: 0 });

const OPEN: Record<string, State> = {
  running: 'run',
  queued: 'queued',
  blocked: 'blocked',
  waiting: 'limit',
};

function stateOfEntry({ need, verified, status }: Entry): State {
  if (status === 'cancelled') return 'cancelled';
  if (need === 'question') return 'you';
  if (status === 'failed' || need === 'delivery') return 'bad';
  if (status === 'completed') return verified ? 'ok' : 'said';
  return OPEN[status] ?? 'todo';
}

/** The next action for an entry, with the equivalent command. */
function Next({ entry }: { entry: Entry }) {
  const retry = useAction(() => actions.task(entry.id, 'retry'));
  const resume = useAction(() => actions.run(entry.id, 'resume'));
  const isRun = entry.pattern !== null;
  const canReview = entry.group === 'done' && entry.changed && entry.branch && !entry.merged;
  const canRetry = entry.group === 'failed' && !isRun;
  const canResume = isRun && entry.status === 'paused';
  const command = entry.group === 'done' ? undefined : entry.next[0]?.command;
  return (
    <>
      <div className="acts next">
        {entry.question && (
          <WorkTo id={entry.id} className="btn sm">
            Answer
          </WorkTo>
        )}
        {canReview && (
          <WorkTo id={entry.id} tab="changes" className="btn sm">
            Review changes
          </WorkTo>
        )}
        {canRetry && (
          <Act small disabled={retry.isPending || retry.isSuccess} onClick={() => retry.mutate(undefined)}>
            {retry.isSuccess ? 'Retried' : 'Retry'}
          </Act>
        )}
        {canResume && (
          <Act small disabled={resume.isPending || resume.isSuccess} onClick={() => resume.mutate(undefined)}>
            {resume.isSuccess ? 'Resumed' : 'Resume'}
          </Act>
        )}
        {command && <code className="faint desk">{command}</code>}
      </div>
      <Problem error={retry.error ?? resume.error} />
    </>
  );
}

/** A score alone is not a check. */
function proofOf(entry: Entry): string {
  if (entry.verified) return 'Verified';
  const isChecked = entry.evidence.some((check) => check.passed);
  return entry.scores.length > 0 && !isChecked ? 'Judged by a score, not proven' : 'Completed, not proven';
}

function One({ entry, titleOf }: { entry: Entry; titleOf: (id: string) => string | undefined }) {
  const checks = entry.evidence.filter((check) => check.passed);
  const parts = entry.parts.filter((part) => part.status !== 'completed');
  return (
    <li>
      <Glyph state={stateOfEntry(entry)} />
      <div>
        <WorkTo id={entry.id}>
          <Said>{entry.title}</Said>
        </WorkTo>
        {entry.question && (
          <p>
            Question: <Said>{entry.question}</Said>
          </p>
        )}
        {entry.reason && !entry.question && (
          <p className="dim">
            <Said>{sentence(capital(named(inline(entry.reason), titleOf)))}</Said>
          </p>
        )}
        {entry.status === 'completed' && (
          <p className="dim small">
            {proofOf(entry)}
            {checks.map((check) => (
              <span key={check.name} className="sep">
                <code>
                  <Said>{check.name}</Said>
                </code>{' '}
                {check.commit && `on ${shortCommit(check.commit)}`}
              </span>
            ))}
            {entry.merged && <span className="sep">merged into {entry.base}</span>}
          </p>
        )}
        {entry.delivery?.url && (
          <p className="small">
            <a href={entry.delivery.url} rel="noreferrer">
              <Said>{entry.delivery.url}</Said>
            </a>
          </p>
        )}
        {entry.delivery?.status === 'failed' && entry.delivery.reason && (
          <p className="c-bad">
            Not delivered: <Said>{entry.delivery.reason}</Said>
          </p>
        )}
        {parts.map((part) => (
          <p key={part.id} className="dim small">
            <WorkTo id={part.id}>
              <Said>{part.title}</Said>
            </WorkTo>{' '}
            is {part.status}
            {part.reason && (
              <>
                : <Said>{part.reason}</Said>
              </>
            )}
          </p>
        ))}
        <Next entry={entry} />
      </div>
      <span className="age">
        <span title={entry.repository ?? entry.directory}>
          <Said>{nameOfPath(entry.repository ?? entry.directory)}</Said>
        </span>
        {entry.attempts > 0 && <span className="sep">{costOf(entry)}</span>}
      </span>
    </li>
  );
}
