import { useState } from 'react';
import type { Usage, UsageSum } from '../../api/client';
import { type UsageBy, useUsage } from '../../api/queries';
import { counted, percent } from '../../model/format';
import { cachedShare, price, priceOfSum, tokens } from '../../model/price';
import { Button, Choices, Loading, Problem } from '../../parts/controls';
import { View as Frame } from '../../shell/layout';
import { useScope } from '../../shell/preferences';
import { Accounts } from './accounts';
import { DayChart } from './day_chart';
import { Dearest } from './dearest';
import { perVerified, Table } from './table';

const SPANS = { today: 0, week: 6, month: 29, all: null } as const;
type Span = keyof typeof SPANS;

function sinceOf(span: Span): string | undefined {
  const days = SPANS[span];
  if (days === null) return undefined;
  const begun = new Date();
  begun.setHours(0, 0, 0, 0);
  begun.setDate(begun.getDate() - days);
  return begun.toISOString();
}

export function View() {
  const [span, setSpan] = useState<Span>('month');
  const [by, setBy] = useState<Exclude<UsageBy, 'day'>>('agent');
  const [across, setAcross] = useState<UsageBy | 'nothing'>('nothing');
  const [project] = useScope();
  const since = sinceOf(span);
  const days = useUsage('day', since, project, 'outcome');
  const rows = useUsage(by, since, project, across === 'nothing' ? undefined : across);
  const daily = useUsage(by, since, project, 'day');
  const total = days.data?.total;
  return (
    <Frame title="Usage">
      <div className="page wide stack">
        <div className="tbar">
          <Choices
            label="Since"
            value={span}
            choose={setSpan}
            of={[
              { value: 'today', label: 'Today' },
              { value: 'week', label: '7 days' },
              { value: 'month', label: '30 days' },
              { value: 'all', label: 'All' },
            ]}
          />
          <Button
            look="quiet"
            small
            className="end"
            disabled={!rows.data?.rows.length}
            onClick={() => rows.data && save(rows.data)}
          >
            CSV
          </Button>
        </div>
        <Problem error={days.error ?? rows.error} />
        {days.isPending && <Loading />}
        {total && <Figures total={total} rows={days.data?.rows ?? []} />}
        {days.data && days.data.rows.length > 0 && (
          <DayChart rows={days.data.rows} least={Math.max(7, (SPANS[span] ?? 29) + 1)} />
        )}
        <section className="section">
          <header className="wraps">
            <h2>By</h2>
            <Choices
              label="By"
              value={by}
              choose={setBy}
              of={[
                { value: 'agent', label: 'Agent' },
                { value: 'model', label: 'Model' },
                { value: 'project', label: 'Project' },
                { value: 'run', label: 'Run' },
                { value: 'task', label: 'Task' },
                { value: 'template', label: 'Template' },
              ]}
            />
            <span className="dim">then by</span>
            <Choices
              label="Then by"
              value={across}
              choose={setAcross}
              of={[
                { value: 'nothing', label: 'None' },
                { value: 'day', label: 'Day' },
                { value: 'outcome', label: 'Outcome' },
                { value: 'model', label: 'Model' },
                { value: 'project', label: 'Project' },
              ]}
            />
          </header>
          {rows.data && (
            <Table
              by={by}
              rows={rows.data.rows}
              total={rows.data.total}
              days={across === 'nothing' ? (daily.data?.rows ?? []) : null}
            />
          )}
        </section>
        <div className="halves">
          <Accounts />
          <Dearest />
        </div>
      </div>
    </Frame>
  );
}

const LOST = new Set(['failed', 'cancelled', 'lost']);

/** The table as CSV. */
function save({ by, across, rows }: Usage): void {
  const names = [by, ...(across ? [across] : []), 'attempts', 'verified', 'input_tokens', 'cached_tokens'];
  const header = [...names, 'output_tokens', 'turns', 'cost_usd', 'unknown_cost', 'unreported'];
  const lines = rows.map((row) =>
    [
      row.title ?? row.key,
      ...(across ? [row.across] : []),
      ...[row.attempts, row.verified, row.input_tokens, row.cached_tokens],
      ...[row.output_tokens, row.turns, row.cost_usd, row.unknown_cost, row.unreported],
    ].map(cell),
  );
  const text = [header, ...lines].map((line) => line.join(',')).join('\r\n');
  const link = document.createElement('a');
  link.href = URL.createObjectURL(new Blob([text], { type: 'text/csv' }));
  link.download = `kapelle-usage-by-${by}.csv`;
  link.click();
  URL.revokeObjectURL(link.href);
}

/** Text in quotes; what a spreadsheet would take for a formula begins with an apostrophe. */
function cell(value: string | number | null | undefined): string {
  if (typeof value !== 'string') return String(value ?? '');
  return `"${value.replace(/^[=+\-@\t\r]/, "'$&").replaceAll('"', '""')}"`;
}

/** The number of attempts without a known price, as text. */
function pricesLine(unknown: number, attempts: number): string {
  if (unknown > 0) return `${counted(unknown, 'attempt')} without a known price`;
  return attempts > 0 ? 'all prices known' : '';
}

function Figures({ total, rows }: { total: UsageSum; rows: Usage['rows'] }) {
  const lost = rows.filter((row) => LOST.has(row.across ?? ''));
  const wasted = lost.reduce((sum, row) => sum + (row.cost_usd ?? 0), 0);
  const tries = lost.reduce((sum, row) => sum + row.attempts, 0);
  const all = priceOfSum(total);
  const unknown = lost.reduce((sum, row) => sum + priceOfSum(row).unknown, 0);
  const cached = cachedShare(total.cached_tokens, total.input_tokens);
  const silent = total.unreported > 0 ? `${counted(total.unreported, 'attempt')} reported none` : '';
  const figures: [string, string, string][] = [
    ['Cost', price(all), pricesLine(all.unknown, total.attempts)],
    [
      'Per verified attempt',
      perVerified(total),
      `${total.verified} of ${counted(total.attempts, 'attempt')}`,
    ],
    [
      'Spent on failed work',
      price({ usd: wasted || !unknown ? wasted : null, unknown }),
      wasted && total.cost_usd ? `${percent(wasted, total.cost_usd)} of it` : counted(tries, 'attempt'),
    ],
    ['Tokens in', tokens(total.input_tokens, total), cached && `${cached} cached`],
    ['Tokens out', tokens(total.output_tokens, total), silent || counted(total.attempts, 'attempt')],
  ];
  return (
    <div className="figs panel">
      {figures.map(([name, value, about]) => (
        <div key={name}>
          <div className="k">{name}</div>
          <div className="v">{value}</div>
          <div className="d">{about}</div>
        </div>
      ))}
    </div>
  );
}
