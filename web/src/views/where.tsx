import type { ReactNode } from 'react';
import { isRun, type Work } from '../api/client';
import { useOne } from '../api/queries';
import { shortCommit, shortId } from '../model/format';
import { latest, parentOf } from '../model/work';
import { Moment, Said } from '../parts/text';
import { Facts } from './work_head';
import { WorkTo } from './work_link';

const TAIL = 10;

/** A path or name; where there is no room for it its middle is hidden, and it is copied whole. */
const Short = ({ children }: { children: string }) => (
  <code className="middle" title={children}>
    <span>
      <Said>{children.slice(0, -TAIL)}</Said>
    </span>
    <Said>{children.slice(-TAIL)}</Said>
  </code>
);

const Parent = ({ id }: { id: string }) => (
  <WorkTo id={id}>
    <Said>{useOne(id).data?.title ?? shortId(id)}</Said>
  </WorkTo>
);

/** The workspace, the agent and the project of work. */
export function Where({ work }: { work: Work }) {
  const { branch, base, base_commit, path } = work.workspace;
  const text = (value: unknown): string | null => (typeof value === 'string' && value ? value : null);
  const last = isRun(work) ? undefined : latest(work);
  const who = isRun(work)
    ? [text(work.spec.agent), text(work.spec.model)]
    : [work.agent, last?.model ?? work.model];
  const fallback = isRun(work) ? [] : work.fallback_agents;
  const parent = parentOf(work);
  const found: [string, ReactNode][] = [
    ['Project', work.project && <Said key="p">{work.project}</Said>],
    ['Inside', parent && <Parent key="i" id={parent} />],
    ['Directory', <Short key="d">{work.directory}</Short>],
    ['Branch', branch && <Short key="b">{branch}</Short>],
    ['Base', base && <Base key="a" base={base} commit={base_commit ?? null} />],
    ['Agent', who.filter(Boolean).join(', ')],
    ['Fallback', fallback.join(', ')],
    ['Session', last?.session_id && <Short key="s">{last.session_id}</Short>],
    ['Worktree', path && path !== work.directory && <Short key="w">{path}</Short>],
    ['Created', <Moment key="c" at={work.created_at} />],
  ];
  return (
    <section>
      <h2>Where</h2>
      <Facts facts={found.filter(([, value]) => value)} />
    </section>
  );
}

const Base = ({ base, commit }: { base: string; commit: string | null }) => (
  <>
    <code>
      <Said>{base}</Said>
    </code>
    {commit && (
      <>
        {' '}
        at <code>{shortCommit(commit)}</code>
      </>
    )}
  </>
);
