import { type ReactNode, type RefObject, useLayoutEffect, useRef, useState } from 'react';

/** The width of a box, and a ref for the box. */
export function useWidth<Box extends HTMLElement = HTMLDivElement>(
  least: number,
): [RefObject<Box | null>, number] {
  const box = useRef<Box>(null);
  const [width, setWidth] = useState(900);
  useLayoutEffect(() => {
    const watch = new ResizeObserver(
      ([entry]) => entry && setWidth(Math.max(least, entry.contentRect.width)),
    );
    if (box.current) watch.observe(box.current);
    return () => watch.disconnect();
  }, [least]);
  return [box, width];
}

interface Props {
  title: ReactNode;
  /** The text alternative of the picture. */
  label: string;
  legend?: ReactNode;
  height: number;
  least?: number;
  /** The picture contains links. */
  links?: boolean;
  children: (width: number) => ReactNode;
}

/** A picture that is drawn at the width it has, so that its text is never scaled. */
export function Chart({ title, label, legend, height, least = 320, links, children }: Props) {
  const [box, width] = useWidth(least);
  return (
    <section className="panel box">
      <header>
        <h2>{title}</h2>
        {legend}
      </header>
      <div ref={box} className="scrollx">
        <svg
          className="chart"
          viewBox={`0 0 ${width} ${height}`}
          width={width}
          height={height}
          role={links ? 'group' : 'img'}
          aria-label={label}
        >
          {children(width)}
        </svg>
      </div>
    </section>
  );
}

/** Lines across a chart, each with its value at the left. */
export function Rules(props: {
  at: number[];
  y: (value: number) => number;
  left: number;
  right: number;
  name?: (value: number) => string;
}) {
  const { at, y, left, right, name = String } = props;
  return at.map((value) => (
    <g key={value}>
      <line className="grid" x1={left} x2={right} y1={y(value)} y2={y(value)} />
      <text x={left - 8} y={y(value) + 4} textAnchor="end">
        {name(value)}
      </text>
    </g>
  ));
}
