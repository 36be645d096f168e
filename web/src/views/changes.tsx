import { memo, useMemo, useState } from 'react';
import type { Work } from '../api/client';
import { useDiff } from '../api/queries';
import { counted, visible } from '../model/format';
import { Button, Empty, Loading, Problem } from '../parts/controls';
import { Icon } from '../parts/icon';
import { Said } from '../parts/text';
import { useKeys } from '../shell/keys';
import { type DiffFile, type DiffLine, PlusMinus, parsePatch } from './patch';

/** What a piece of work changed, file by file. */
export function Changes({ work }: { work: Work }) {
  const diff = useDiff(work.id);
  const files = useMemo(() => parsePatch(diff.data?.patch ?? ''), [diff.data]);
  const [at, setAt] = useState(0);
  const go = (place: number) => {
    if (!files[place]) return;
    setAt(place);
    document.getElementById(`file-${place}`)?.scrollIntoView({ block: 'start' });
  };
  useKeys({ '[': () => go(at - 1), ']': () => go(at + 1) });
  if (diff.error) return <Problem error={diff.error} />;
  if (diff.isPending) return <Loading lines={8} />;
  if (files.length === 0) {
    return (
      <Empty title="Nothing was changed">
        <p>What its branch and its worktree hold is what they began with.</p>
      </Empty>
    );
  }
  const total = {
    added: files.reduce((sum, file) => sum + file.added, 0),
    removed: files.reduce((sum, file) => sum + file.removed, 0),
  };
  return (
    <>
      <div className="tbar">
        <span>
          {work.workspace.base && `Against ${work.workspace.base}: `}
          {counted(files.length, 'file')} <PlusMinus count={total} />
        </span>
        {diff.data.truncated && <span className="c-you">It is too large to be shown in full.</span>}
        <span className="end desk">
          <kbd>[</kbd> <kbd>]</kbd> file before, after
        </span>
      </div>
      <div className="changes">
        <Tree files={files} at={at} go={go} />
        <div className="min-w-0">
          {files.map((file, place) => (
            <OneFile key={file.path} file={file} id={`file-${place}`} />
          ))}
        </div>
      </div>
    </>
  );
}

const folderOf = (path: string): string => path.slice(0, Math.max(0, path.lastIndexOf('/')));

function Tree({ files, at, go }: { files: DiffFile[]; at: number; go: (place: number) => void }) {
  return (
    <nav className="tree desk" aria-label="Files">
      {files.map((file, place) => {
        const folder = folderOf(file.path);
        const first = folder !== folderOf(files[place - 1]?.path ?? '');
        return (
          <div key={file.path}>
            {first && folder && (
              <span className="d">
                <Icon name="folder" />
                <Said className="cut">{folder}</Said>
              </span>
            )}
            <a
              href={`#file-${place}`}
              className={folder ? 'in' : ''}
              aria-current={place === at ? 'true' : undefined}
              onClick={(event) => {
                event.preventDefault();
                go(place);
              }}
            >
              <Said className="cut">{file.path.slice(folder.length).replace(/^\//, '')}</Said>
              <PlusMinus count={file} />
            </a>
          </div>
        );
      })}
    </nav>
  );
}

const MOST_LINES = 1500;

const OneFile = memo(({ file, id }: { file: DiffFile; id: string }) => {
  const [all, showAll] = useState(false);
  const lines = all ? file.lines : file.lines.slice(0, MOST_LINES);
  const left = file.lines.length - lines.length;
  return (
    <section className="diff" id={id} aria-label={file.path}>
      <header>
        <Icon name="file" />
        <Said className="mono cut">{file.path}</Said>
        {file.about && <span className="faint">{file.about}</span>}
        <PlusMinus count={file} />
      </header>
      <Lines lines={lines} />
      {left > 0 && (
        <Button small look="quiet" onClick={() => showAll(true)}>
          {counted(left, 'more line')}
        </Button>
      )}
    </section>
  );
});

const SIGNS = { a: '+', r: '−', h: '', '': '' };

const Lines = ({ lines }: { lines: DiffLine[] }) => (
  // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reached by keys
  <div className="lines" role="region" aria-label="Lines" tabIndex={0}>
    {lines.map((line, place) => (
      <div key={place} className={line.kind || undefined}>
        <i>{line.before}</i>
        <i>{line.after}</i>
        <u>{SIGNS[line.kind]}</u>
        <Code line={line} />
      </div>
    ))}
  </div>
);

function Code({ line: { text, marked } }: { line: DiffLine }) {
  if (!marked || marked[0] >= marked[1]) return <span>{visible(text)}</span>;
  const [from, to] = marked;
  return (
    <span>
      {visible(text.slice(0, from))}
      <em>{visible(text.slice(from, to))}</em>
      {visible(text.slice(to))}
    </span>
  );
}
